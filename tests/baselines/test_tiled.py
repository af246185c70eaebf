"""Products fused with collectives tile by tile: floors, ceilings, and what each mechanism is for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import NotSupported
from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines.tiled import (
    TILE,
    Product,
    TiledKernel,
    gather_product,
    kernel_seconds,
    product_reduce,
    product_scatter,
    share_of,
    wire_of,
)
from siliconloom.reproduce.tiled_experts import SUMMING, Experts, gather_experts, scatter_experts, separate_seconds

FUSIONS = [gather_product, product_scatter, product_reduce]


def gpu_with(rate):
    return load_gpu("h100", [("link.bandwidth", f"{rate} GB/s")])


products = st.builds(
    Product, st.sampled_from([1024, 2048, 8192]), st.sampled_from([1024, 4096]), st.sampled_from([1024, 8192])
)


@pytest.mark.parametrize("fuse", FUSIONS)
@settings(max_examples=12, deadline=None)
@given(products, st.sampled_from([2, 4, 8]), st.sampled_from([20, 100, 450]))
def test_fused_lies_between_its_parts_and_their_sum(fuse, product, chips, rate):
    gpu = gpu_with(rate)
    found = fuse(gpu, product, chips)
    assert found.fused >= found.product * (1 - 1e-9)
    assert found.fused >= found.transfer
    assert found.exposed >= -1e-9
    # All tiles, then all messages, a flag for every chunk or strip, and the sums.
    strips = product.rows // chips // TILE[0] + chips + 2
    sums = 3 * product.results / gpu.memory_bandwidth + 1e-5
    again = (
        8 * (product.inputs + product.weights + product.results) / gpu.memory_bandwidth
    )  # weights may be read for every chunk
    assert found.fused <= found.product + found.transfer + strips * 3 * wire_of(gpu).flag + sums + again


@pytest.mark.parametrize("fuse", FUSIONS)
def test_a_faster_link_is_never_slower(fuse):
    times = [fuse(gpu_with(rate), Product(8192, 4096, 8192), 8).fused for rate in (10, 30, 100, 300, 1000)]
    assert times == sorted(times, reverse=True)


@settings(max_examples=20, deadline=None)
@given(products)
def test_tiles_that_wait_for_nothing_take_the_kernels_time(product):
    gpu = load_gpu("h100")
    kernel = TiledKernel(gpu, product)
    kernel.add(product, product.tiles)
    assert kernel.finish() == pytest.approx(kernel_seconds(gpu, product), rel=1e-6)


def test_a_link_that_is_fast_enough_hides_behind_the_product():
    product = Product(8192, 8192, 8192)
    found = gather_product(gpu_with(450), product, 8)
    assert found.exposed < 0.02 * found.product
    assert found.fused < found.chunked < found.sequential
    scattered = product_scatter(gpu_with(450), product, 8)
    assert scattered.exposed < 0.1 * scattered.product


def test_small_products_lose_waves_when_they_are_cut():
    """Eight products of one eighth fill the multiprocessors badly; the fused kernel's tiles follow each other."""
    gpu, product = gpu_with(450), Product(2048, 4096, 8192)
    part = share_of(product, 8)
    assert 8 * kernel_seconds(gpu, part) > 1.5 * kernel_seconds(gpu, product)
    found = gather_product(gpu, product, 8)
    assert found.chunked > found.fused


def test_multiprocessors_set_apart_make_a_product_slower():
    gpu, product = load_gpu("h100"), Product(8192, 8192, 8192)
    times = []
    for taken in (0, 32, 64):
        kernel = TiledKernel(gpu, product, taken=taken)
        kernel.add(product, product.tiles)
        times.append(kernel.finish())
    assert times == sorted(times)
    assert times[2] > 1.5 * times[0]
    for fuse in FUSIONS:
        assert fuse(gpu, product, 8, taken=64).fused > 1.2 * fuse(gpu, product, 8).fused
    with pytest.raises(NotSupported):
        TiledKernel(gpu, product, taken=gpu.multiprocessors)


@pytest.mark.parametrize("rate", [100, 450])
@pytest.mark.parametrize(("experts", "chosen", "share"), [(32, 4, 1.0), (32, 4, 0.5), (8, 2, 1.0)])
def test_experts_fused_are_faster_than_one_after_the_other(rate, experts, chosen, share):
    gpu = gpu_with(rate)
    layer = Experts(8192, chosen, experts, share, 8192, round(1024 / share))
    assert layer.first.rows == layer.second.rows == 8192 * chosen * share
    for found in (gather_experts(gpu, layer, 8), scatter_experts(gpu, layer, 8)):
        assert max(found.product, found.transfer) <= found.fused < found.sequential
    assert separate_seconds(gpu, layer.first) > kernel_seconds(gpu, layer.first)
    assert max(SUMMING) < gpu.multiprocessors


def test_fewer_passes_read_experts_weights_less_often():
    layer = Experts(8192, 4, 32, 1.0, 8192, 1024)
    size = layer.tokens * layer.hidden * 2.0
    fast = [gather_product(gpu_with(4000), layer.first, 8, size=size, passes=n).fused for n in (1, 2, 4, 8)]
    assert fast[3] > 1.5 * fast[0]  # with eight, each chunk reads all weights again
    slow = [gather_product(gpu_with(100), layer.first, 8, size=size, passes=n).fused for n in (1, 4)]
    assert slow[1] < slow[0]  # but a slow link is waited for in parts


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(NotSupported, match="an equal part for each of 8 GPUs"):
        product_scatter(load_gpu("h100"), Product(1001, 1024, 1024), 8)


@pytest.mark.parametrize("fuse", FUSIONS)
def test_one_gpu_has_no_collective(fuse):
    with pytest.raises(NotSupported, match="collective of one GPU"):
        fuse(load_gpu("h100"), Product(1024, 1024, 1024), 1)
