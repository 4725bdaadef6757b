"""Answers judged by hand before they were graded, by label: those that are right, and others."""

BOXED = {
    "42": (
        [
            *("42", "042", "+42", "42.0", "42.", "$42$", "\\$42", "\\text{42}", "x = 42", "42\\%"),
            *("42 \\text{ cm}", "42\\text{dollars}", "42^\\circ", "40 + 2 = 42", "84/2"),
            *(
                "42 \\text{ cm}^2",
                "42\\ \\text{cm}",
                "42\\;\\mathrm{m/s}^{2}",
                "42\\textrm{ kg}",
                "42°",
                "42\\,",
                "\\;42\\text{ kg}~",
                "\\displaystyle 42",
            ),
            "\\frac{84}{2} = 42",
        ],
        [
            *(
                "-42",
                "42^2",
                "42\\text{ or }43",
                "41 = 42",
                "x = 41 = 42",
                "\\not= 42",
                "x \\not= 42",
                "x != 42",
                "x >= 42",
                "420",
                "4 2",
                "41",
                "[42]",
                "(42, 43)",
                "\\{41,42,43\\}",
                "41, 42",
                "42x",
                "42i",
                "42\\text{ million}",
            ),
            *("41 \\text{ or } 42", "42 \\pm 1", "42\\\\43", "\\pm 42", "> 42", "42!", "40 + 2"),
            *(
                "6 \\cdot 7",
                "6 7",
                "\\sqrt{1764}",
                "\\gcd(84, 126)",
                "\\max(41, 42)",
                "\\log_2 2^{42}",
            ),
            *("\\int_0^{42} 1\\,dx", "|{-42}|", "\\binom{42}{1}", "42_8", "42\\text{ to }43", ""),
            *("\\lfloor 42.5 \\rfloor", "42\\n43", "1e999999999", "42/0", "forty-two"),
        ],
    ),
    "1,234": (
        ["1234", "1{,}234", "1\\,234", "1,\\!234", "1.234e3", "1.234 \\times 10^{3}"],
        ["12,34", "1, 234", "1.234", "234"],
    ),
    "0.5": (
        ["1/2", "\\frac{1}{2}", "\\dfrac12", ".5", "0.50", "5e-1"],
        ["5", "-1/2", "\\frac{2}{1}", "1 2", "1\\frac{1}{2}"],
    ),
    "7/2": (["3\\frac{1}{2}", "3\\frac12"], ["-3\\frac12", "\\frac{3}{2}", "3\\frac{1}{3}"]),
    "1:20": (["1{:}20", "1:20 \\text{ hours}"], ["2:40", "1:2"]),
    "36\\pi": (["36\\pi \\text{ cm}^2", "\\displaystyle 36\\pi"], ["36", "36\\pi\\text{ dozen}"]),
    "x \\ge 3": (["x \\geq 3"], ["x \\leq 3", "x > 3", "3", "x = 3"]),
    "1/3": (["0.333333", "\\frac{2}{6}"], ["0.33", "3"]),
    1e16: (["1e16", "10000000000000000"], ["10000000000000001"]),
    "1" * 60: (["1" * 60], ["1" * 59 + "2"]),
    "2,3": (
        ["3, 2", "x=2, x=3", "2 \\text{ or } 3", "\\{2,3\\}"],
        ["2", "2,4", "2,3,4", "2,2", "23"],
    ),
    "(1,2)": (["(1, \\frac{4}{2})", "(x,y)=(1,2)", "1,2"], ["(2,1)", "2,1", "1", "\\{2,1\\}"]),
    "\\pm 3": (["3, -3", "x = \\pm 3"], ["3", "\\pm 4"]),
    "[0,1]": (["[0,1]", "x \\in [0,1]"], ["[0,1)", "(0,1)", "1"]),
    "2\\sqrt{2}": (
        ["\\sqrt{8}", "2\\sqrt{2} \\text{ cm}", "2\\sqrt{2}\\text{ cm}^2", "\\frac{4}{\\sqrt{2}}"],
        [
            "2",
            "\\pm 2\\sqrt{2}",
            "2\\sqrt{2}, 3",
            "2\\sqrt{2}$ $3",
            "2.83",
            "2\\sqrt{2}\\text{ or }3",
        ],
    ),
    "2x": (
        ["x + x", "y = 2x"],
        ["\\frac{d}{dx}x^2", "\\frac{\\mathrm{d}}{\\mathrm{d}x}x^2", "(x^2)'", "2y", "2x, 3x"],
    ),
    "x = 5": (["5", "x=5"], ["-5", "y = 5"]),
    "\\frac{\\pi}{4}": (
        ["\\pi / 4"],
        ["\\arctan 1", "\\tan^{-1}(1)", "\\int_0^1 \\frac{1}{1+x^2} dx"],
    ),
    "2016_8": (["2016_8", "2016_{8}"], ["2016", "2016_9", "1038"]),
    "\\begin{pmatrix}3\\\\4\\end{pmatrix}": (
        ["\\begin{pmatrix} 3 \\\\ 4 \\end{pmatrix}", "\\begin{bmatrix} 3 \\\\ 4 \\end{bmatrix}"],
        [
            "\\begin{pmatrix} 4 \\\\ 3 \\end{pmatrix}",
            "\\begin{pmatrix}1\\\\2\\end{pmatrix}+\\begin{pmatrix}2\\\\2\\end{pmatrix}",
            "\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}\\begin{pmatrix}3\\\\4\\end{pmatrix}",
            "\\det\\begin{pmatrix}3\\end{pmatrix}",
        ],
    ),
    "cat": (["\\text{cat}", "Cat", "**cat**"], ["act", "a cat", "not cat", "cat or dog"]),
    "no solution": (["\\text{No solution.}"], ["solution", "no"]),
    "C": (["C", "(C)", "\\text{(C)}", "C."], ["c", "B", "B, C", "BC"]),
    "080 or 081 (both were accepted)": (["80", "081"], ["82", "8", "80 81"]),
    "She sells 9 * 2 = 18.\n#### 18": (["18"], ["9"]),
    "The sum is $3 \\cdot 4 = \\boxed{12}$.": (["12"], ["4"]),
}
"""What stands in the box of an answer."""

TEXTS = {
    "42": (
        [
            *(
                "42",
                "**42**",
                "$42$",
                "\\(42\\)",
                "#### 42",
                "12\n30\n42",
                "Answer: 42",
                "```\n42\n```",
            ),
            *(
                "\\boxed{41}, no: \\boxed{42}",
                "\\boxed{42} stands in \\boxed{}",
                "**Final answer:** 42",
            ),
        ],
        [
            *(
                "The answer is 42.",
                "It is 42",
                "41 or 42",
                "41, 42",
                "42\n41",
                "Answer: 42\nor 41",
                "",
            ),
            *(
                "Answer: 41 42",
                "\\boxed{42",
                "\\boxed{41} 42",
                "42 \\boxed{}",
                "answer: X",
                "Answer:",
            ),
            *("\\boxed{42} and \\boxed{41", "3:42", "answer: 42 answer: 41", "My answer: 42"),
        ],
    ),
    "42.5": (["$42.50", "Answer: $42.50."], ["It costs $42.50."]),
    "Monday": (["Answer: Monday", "It is clear.\n\nMonday."], ["It is Monday.", "Monday\nTuesday"]),
    "She sells 9 * 2 = 18.\n#### 18": (["She sells 9 * 2 = 18.\n#### 18"], ["18 dollars"]),
}
"""Whole answers."""

HOSTILE = {
    "a tower": "\\boxed{9^{9^{9}}}",
    "a tower in a list": "\\boxed{1,9^{9^{9^9}},3}",
    "an exponent": "\\boxed{1e999999999}",
    "digits": "\\boxed{" + "1" * 100_000 + "}",
    "digits without a box": "1" * 100_000,
    "a denominator of many digits": "\\boxed{1/" + "7" * 5000 + "}",
    "nested fractions": "\\boxed{" + "\\frac{1}{" * 300 + "2" + "}" * 301,
    "a factorial": "\\boxed{(10^{9})!}",
    "letters": "\\boxed{" + "x" * 3000 + "}",
    "opened boxes": "\\boxed{" * 20_000,
    "commas": "\\boxed{" + "1," * 400 + "1}",
    "minus signs": "-" * 50_000 + "1",
    "spaces": "\\boxed{1" + " " * 50_000 + "2}",
    "null characters": "\\boxed{\0\0}",
    "half of a pair": "\\boxed{\\sqrt{\ud800}}",
}
"""Answers that are meant to stall or to end what grades them."""
