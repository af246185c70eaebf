"""Numbers to four digits, in whole ones beyond."""

from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.quantity import four_digits


@given(st.floats(1e-3, 1e15))
def test_a_number_has_four_digits_at_least_and_no_power_of_ten(number):
    text = four_digits(number)
    assert "e" not in text
    assert abs(float(text.replace(",", "")) - number) <= 5.01e-4 * number


def test_large_numbers_have_commas():
    assert [four_digits(n) for n in (0.01234, 146.4, 8862.0, 37_070.4)] == ["0.01234", "146.4", "8,862", "37,070"]
