"""Sums that begin with a given number, or with one of their own. No result is below 0."""


class Sum:
    """A number, plus or minus a digit."""

    def __init__(self, sign):
        self.sign = sign

    def case(self, rng, given):
        first = rng.randint(10, 18) if given is None else int(given)
        return {
            "problem": f"{first}{self.sign}{(digit := rng.randint(2, 9))}",
            "result": first + int(f"{self.sign}{digit}"),
        }

    def prompt(self, case):
        return {"problem": case["problem"]}

    def verify(self, value, case):
        return float(value == case["result"])


class Total(Sum):
    """The sum of the numbers that are given."""

    def __init__(self):
        super().__init__("+")

    def case(self, rng, given):
        numbers = [int(number) for number in given]
        return {"problem": "+".join(map(str, numbers)), "result": sum(numbers)}


plus, minus, total = Sum("+"), Sum("-"), Total()
