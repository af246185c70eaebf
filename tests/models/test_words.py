"""Tokenizers and chat templates: text to numbers and back, the same from a GGUF file and from a folder."""

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.models.chat import asked_text
from siliconloom.models.source import ModelSource
from siliconloom.models.tokenizer import SPLITS, TokenStream, tokenizer_of
from tests.models.files import TEMPLATE, model_of, words, write_folder, write_gguf


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tokenizers by name of the pre-tokenizer, and that of a folder."""
    folder = tmp_path_factory.mktemp("words")
    config, tensors = model_of("llama", layers=1)
    found = {
        pre: tokenizer_of(ModelSource(write_gguf(folder / f"{pre}.gguf", config, tensors, pre=pre))) for pre in SPLITS
    }
    return found | {"folder": tokenizer_of(ModelSource(write_folder(folder / "m", config, tensors)))}


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("pre", [*SPLITS, "folder"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=30))
def test_a_text_comes_back_from_its_tokens(made, pre, text):
    tokenizer = made[pre]
    if any(special in text for special in words()[:3]):
        return
    tokens = tokenizer.encode(text)
    assert all(0 <= token < len(words()) for token in tokens)
    assert tokenizer.decode(tokens) == text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=30))
def test_a_file_and_a_folder_make_the_same_tokens(made, text):
    assert made["smollm"].encode(text) == made["folder"].encode(text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, len(words()) - 1), max_size=20))
def test_pieces_of_a_stream_are_the_text(made, tokens):
    """Whatever bytes come: no piece ends within a character, and together they are all of it."""
    stream = TokenStream(made["smollm"])
    pieces = [stream.add(token) for token in tokens]
    whole = "".join(pieces) + stream.rest()
    assert whole == made["smollm"].decode(tokens)
    assert not any(piece.endswith("\ufffd") for piece in pieces)


def test_a_character_is_there_when_its_last_byte_is(made):
    tokens = made["smollm"].encode("é€")
    stream = TokenStream(made["smollm"])
    assert [stream.add(token) for token in tokens] == ["", "é", "", "", "€"]


def test_merges_and_pieces_are_those_of_the_pre_tokenizer(made):
    texts = {pre: [words()[token] for token in made[pre].encode("hello world 112")] for pre in SPLITS}
    assert texts["smollm"][:3] == ["hello", "Ġwor", "l"]
    assert texts["smollm"][-4:] == ["Ġ", "1", "1", "2"]  # each digit alone
    assert texts["gpt-2"][-3:] == ["Ġ", "1", "12"]
    assert texts["llama-bpe"][-3:] == ["Ġ", "1", "12"]  # up to three digits
    assert texts["qwen2"][-4:] == ["Ġ", "1", "1", "2"]


def test_a_template_says_who_speaks(made):
    for name in ("smollm", "folder"):
        text, templated = asked_text(made[name], "hello", "be brief")
        assert templated
        assert (
            text == "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        )
        tokens = made[name].encode(text, templated=True)
        assert tokens[0] == 1
        assert tokens.count(2) == 2
        assert made[name].ends == {2}
    assert "system" not in asked_text(made["smollm"], "hello")[0]


def changed(tmp_path, **more):
    config, tensors = model_of("llama", layers=1)
    return tokenizer_of(ModelSource(write_gguf(tmp_path / "m.gguf", config, tensors, **more)))


def test_templates_that_refuse_or_are_damaged_say_so(tmp_path):
    for number, (template, text) in enumerate(
        {
            "{{ raise_exception('no system') }}": "no system",
            "{% for m in messages %}": "chat template: ",
            "{{ messages[0].content.nothing.more }}": "chat template: ",
            "{{ ().__class__.__base__ }}": "chat template: ",
        }.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(LoomError, match=text):
            asked_text(changed(folder, template=template), "hello")


def test_without_a_template_the_prompt_is_the_text(tmp_path):
    tokenizer = changed(tmp_path, template=None)
    assert asked_text(tokenizer, "hello") == ("hello", False)
    with pytest.raises(LoomError, match="--system: the model has no chat template"):
        asked_text(tokenizer, "hello", "be brief")


def test_a_first_token_comes_once(tmp_path):
    tokenizer = changed(tmp_path, changes={"tokenizer.ggml.add_bos_token": True})
    plain = tokenizer.encode("hello")
    assert plain[0] == tokenizer.first == 1
    assert tokenizer.encode("<|im_start|>hello") == plain
    assert tokenizer.encode("hello", templated=True) == plain[1:]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"tokenizer.ggml.pre": "smolm"}, NotSupported, "the pre-tokenizer smolm .* did you mean 'smollm'"),
        ({"tokenizer.ggml.model": "llama"}, NotSupported, "the tokenizer llama .* byte-level BPE"),
        ({"tokenizer.ggml.model": None}, NotSupported, "no tokenizer"),
        ({"tokenizer.ggml.merges": None}, LoomError, "tokenizer.ggml.merges must be a list of texts"),
        ({"tokenizer.ggml.merges": ["zz y"]}, LoomError, "its merges do not fit its tokens"),
        ({"tokenizer.ggml.token_type": [1]}, LoomError, "token_type must have a number for each of"),
        ({"tokenizer.ggml.eos_token_id": 5000}, LoomError, "eos_token_id must be one of"),
    ],
)
def test_tokenizers_that_are_not_read_are_refused_by_name(tmp_path, changes, error, text):
    with pytest.raises(error, match=text):
        changed(tmp_path, changes=changes)


def test_a_folder_needs_its_tokenizer_and_its_template_may_be_a_file(tmp_path):
    config, tensors = model_of("llama", layers=1)
    folder = write_folder(tmp_path / "m", config, tensors, template=[{"name": "default", "template": TEMPLATE}])
    assert tokenizer_of(ModelSource(folder)).template == TEMPLATE
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert asked_text(tokenizer_of(ModelSource(folder)), "hello") == ("hello", True)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(LoomError, match="no tokenizer that can be read"):
        tokenizer_of(ModelSource(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LoomError, match=r"need a tokenizer\.json"):
        tokenizer_of(ModelSource(folder))


def test_a_package_that_is_missing_is_named_with_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(LoomError, match="need the package tokenizers: pip install"):
        tokenizer_of(ModelSource(tmp_path))
