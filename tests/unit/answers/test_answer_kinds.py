"""Which answers are one, by kinds of spelling: each row of a table is one group, or its members all
differ. No worker is asked here."""

from itertools import permutations, product

import pytest

from flashedge.answers.equality import decide_equal
from flashedge.answers.numbers import parse_number, parse_words
from flashedge.answers.spelling import find_option, normalize

SAME = [
    # a sign where a number begins is none
    *(r"5|+5|x = +5|{+5}", r"(1,2)|(+1,+2)", r"3-2|3 - 2|3 − 2|3－2"),
    # powers of ten, exactly
    r"300000|3 \times 10^5|3\cdot10^{5}|3 x 10^5|3×10⁵|3e5|3E+5|30 \cdot 10^{4}",
    r"0.00015|1.5e-4|1.5 \times 10^{-4}|\frac{15}{100000}",
    # decimals that repeat
    *(r"1/3|0.\overline{3}", r"1/3|0.333333", r"2/3|0.66666667", r"1/6|0.1\overline{6}"),
    # bases
    *(r"101_2|101_{2}|(101)_2|101₂|101_{\text{two}}|5|12_3", r"\text{1A}_{16}|26|26_{10}"),
    # clocks
    *(r"3 AM|3 am|3:00 a.m.|3\text{ A.M.}", r"9 a.m.|9"),
    # options
    r"B|(B)|\text{(B)}|B: 5|(B) 5|B)|B. 5|B) 5|[B]|**B**|**(B)** 5",
    r"B|\textbf{(B)}\ 5|\text{B: the one}",
    r"C|Option C|\text{Choice (C)}|answer: C|C: x = 5|(C) \text{Paris}|\textbf{C.} \frac{1}{2}",
    *(r"A,C|A, C|A and C|(A), (C)|(A) and (C)|\text{(A) and (C)}", r"A,B,D|A, B, and D"),
    # values with names
    r"x=3,y=5|x = 3 and y = 5|x = 3\text{ and }y = 5|(3,5)",
    *(r"y=5,x=3|(3,5)", r"x=\frac12,y=5|(0.5,5)"),
    # exponents without braces
    *(r"x^{-1}|x^-1|x^{- 1}|x⁻¹", r"10^{-20}|10^-20"),
    r"2^{\sqrt{3}}|2^\sqrt3|2^\sqrt{3}|2^\sqrt(3)|2^sqrt(3)|2^{sqrt(3)}",
    r"2^{\frac{1}{2}}|2^\frac12|2^{\frac12}",
    # names of one thing
    *(r"\emptyset|\varnothing|∅|\{\}|\{ \}", r"30|\angle ABC = 30^\circ|m\angle A = 30"),
    # marks around the answer
    r"73|**73**|*73*|__73__|***73***|`73`|```73```|**73** apples|<b>73</b>",
    r"73|\boldsymbol{73}|\texttt{73}",
    r"73|**Answer: 73**|Answer: 73|\approx 73|the final answer is 73",
    # one number
    r"1234567|1,234,567|1{,}234{,}567|1\,234\,567|1 234 567|1, 234, 567|1,\!234,\!567|1234567.00",
    r"5|\$5|$5$|€5|5 USD|US\$5|5\text{ dollars}|5.|5.0|five|5^\circ C|5 min|5\text{ min}",
    r"-5|−5|–5|-\$5|\$-5|negative 5|minus 5",
    r"1/2|½|\sfrac{1}{2}|.5|1⁄2|½ cup|\frac{1}{2} cup|\frac12\text{ cups}",
    *(r"7/2|3½|3\frac{1}{2}|3\frac12|3.5", r"x^{2}|x²"),
    r"\sqrt{2}|√2|\sqrt2|\sqrt 2|sqrt2|sqrt 2|sqrt{2}|sqrt(2)|\sqrt(2)",
    *(r"105|one hundred and five|one hundred five", r"21|twenty-one|Twenty one"),
    *(r"24|2 dozen|2 dozen eggs", r"60|60 km/h|60 miles per hour"),
    r"2\pi|2pi|2 pi|2π|2\pi\text{ inches}|2\pi inches|2pi cm|2\pi\text{ cm}",
    *(r"3\sqrt{2}|3\sqrt{2} meters|3\sqrt{2}\text{ cm}|3\sqrt2 square units", r"2x|2x feet"),
    *(r"5000|5 \times 10^3 meters|5 \cdot 10^{3}\text{ m}", r"17|17\text{ (rounded)}|\boxed{17}"),
    # mixed numbers
    r"63/5|12 \frac{3}{5}|12\frac{3}{5}|12\tfrac35|12 3/5|12.6|12 3/5 hours",
    *(r"-1.5|-1\frac{1}{2}|- 1 1/2", r"-2.75|−2 \frac34", r"13/4|$3\,\dfrac{1}{4}$"),
    *(r"3/2|x = 1\frac{1}{2}", r"1234.5|1,234\frac{1}{2}", r"5.5|5\frac{1}{2}\text{ feet}"),
    r"(3/2,2)|(1\frac{1}{2}, 2)",
    # fractions and decimals
    *(r"1/2|0.5|2/4", r"(b)|(B)", r"(b) 5|B: 5"),
    # percent is a unit
    r"28|28\%|28%|28 percent|28\text{ percent}|28 per cent|28 percentage points",
]
DIFFERENT = [
    # no operator is dropped
    *(r"\sqrt{2}+1|\sqrt{2}|\sqrt{2}1", r"x^{2}+1|x^{2}|x^21", r"10 \% 3|103", r"30^\circ 15|3015"),
    *(r"2\mathrm{i}|2", r"f \circ g|fg", r"~p|p", r"xy=12|12", r"5 squared|5|5 factorial"),
    # exact values
    *(r"10^{-20}|10^{-21}|0", r"10^{400}|10^{401}", r"1.5 \times 10^{-400}|2.5 \times 10^{-400}"),
    *(r"1.0000000000000000000001|1", r"\frac{1}{20000000}|0.0000001", r"5.0000001|5"),
    *(r"0.\overline{3}|0.3|0.333...", r"101_2|101_3|101|101_b|129_8|129|12_{(3)}|12", r"C_{12}|12"),
    # words and names are not products
    *(r"AB|BA", r"no|on", r"CAT|ACT", r"to be|be to"),
    *(r"3 dogs and 4 cats|4 dogs and 3 cats|4 cats and 3 dogs", r"500 BC|500 AD|500"),
    *(r"5 north|5 south", r"A^T|A", r"f'(x)|f(x)", r"5'6\"|56"),
    # clocks
    *(r"3 AM|3 PM", r"3\text{ AM}|3\text{ PM}", r"3:30|4:40|3:30 AM|3:30 PM"),
    r"12 noon|12 midnight",
    # what is no option
    *(r"B|B+5|b|5|A: B|B(5)|B^2|(B)^2|B!|-B|A, B|A: 5, B: 7|(A)(B)|(A) + 5", r"A|A = 5|A(3,4)"),
    *(r"(A,C)|A,C|[A,C]|(C,A)", r"A and B|A and C|A", r"e^-2x|e^{-2}", r"\emptyset|0|\{0\}"),
    *(r"x=3,y=5|(5,3)|\{3,5\}|8", r"x=3,y=5|(x,y)=(5,3)|x+y=8|(y,x)=(3,5)"),
    # what is no mark
    *(r"2**3|23", r"a*b|ab*|a_b"),
    # lists
    *(r"2 or 300|2300", r"2, 300|2300"),
    # percent is a unit
    *(r"50\%|0.5", r"6\text{ million}|6", r"5 or more|5", r"2 xyz|2"),
    r"(1,2) minimum|(1,2) maximum|(1,2)",
    r"5\text{ m } 20\text{ cm}|5\text{ m } 20\text{ km}|20",
    r"2\text{ dogs and } 3\text{ cats}|2\text{ dogs and } 3\text{ hens}",
    *(r"2 hours 30 minutes|2|230", r"3 \pmod 5|3|3\text{ (mod 7)}", r"0.66666|2/3|0.667"),
]


@pytest.mark.parametrize(
    ("row", "same"), [*((row, True) for row in SAME), *((row, False) for row in DIFFERENT)]
)
def test_a_row_is_one_answer_or_many_and_each_normal_form_its_own(row: str, same: bool) -> None:
    for a, b in permutations(row.split("|"), 2):
        assert (decide_equal(a, b) is True) is same, (a, b)
    for answer in row.split("|"):
        form = normalize(answer)
        assert normalize(form) == form, answer
        assert decide_equal(answer, form) is True


BEFORE_OPERATORS = r"\sqrt{2} \frac{a}{b} x_{1} 2^{10} |x| 5! f' (x) [x] \pi x"
BEFORE_OPERATORS += r" 5% 5^\circ \} \left(x\right) \text{a} x² ½x $x$"


@pytest.mark.parametrize("left", BEFORE_OPERATORS.split())
def test_an_operator_between_two_values_stays(left: str) -> None:
    for operator, gap in product("+-*/", ("", " ")):
        assert normalize(f"{left}{gap}{operator}{gap}7").endswith(f"{operator}7")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(B) -5", "B"),
        ("(B) - 5", None),
        ("B:5", "B"),
        ("B.5", None),
        ("J) none of these", "J"),
        ("K", None),
        ("(b)", "(b)"),
        ("b) none", "(b)"),
        ("b", None),
        ("(i)", None),
        ("(a)b", None),
        ("Bob", None),
        ("", None),
    ],
)
def test_find_option(text: str, letter: str | None) -> None:
    assert find_option(text) == letter


@pytest.mark.parametrize(
    ("text", "value"),
    [("ten", 10), ("two million", 2_000_000), ("and", None), ("two and two", None), ("none", None)],
)
def test_parse_words(text: str, value: int | None) -> None:
    assert parse_words(text) == value


def test_a_number_has_its_exact_value() -> None:
    assert parse_number("10^{-400}") == 1 / parse_number("10^{400}")  # type: ignore[operator]
    assert parse_number("-2.5e3") == -2500
    assert parse_number("-0.1\\overline{6}") == parse_number("-1/6")
    assert parse_number("1_1") is parse_number("Z_{37}") is parse_number("٣_8") is None
