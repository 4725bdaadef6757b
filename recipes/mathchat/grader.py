"""The verifier: whether the final answer is the right one. Deterministic, without a model.

What counts is the last `\\boxed{...}` of the answer or, without one, its last number. Numbers are compared as numbers, lists
part by part and words as words; anything else (radicals, expressions, units) is left to math-verify, which knows LaTeX.

An answer is whatever an agent wrote, and LaTeX of a few characters can keep a computer algebra system busy for ever. So
math-verify runs in a process of its own (`serve`), where every question has limits of CPU time and memory; it ends with this
one. An answer that reaches a limit is wrong.
"""

import asyncio
import functools
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from fractions import Fraction
from itertools import permutations

SECONDS, MEMORY = 1, 2 * 2**30
"""Limits of CPU time and bytes for one comparison by math-verify."""
LONGEST, DEEPEST = 1000, 16
"""Maximum number of characters of an answer, and of braces within each other; a longer one is right only as the label's text."""
USUAL = (
    *("\\frac{\\sqrt{2}}{2}", "x^2+2x+1", "(2,1)", "[0,\\pi)", "\\{1,2\\}", "5\\%", "3-4i", "x=\\frac12", "90^\\circ"),
    *("2^{10}", "\\binom{5}{2}", "5!", "x \\le 3", "\\log_2 8", "\\sin(x)", "|x|", "\\text{no}", "42 \\text{ cm}"),
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
)
"""Answers of the usual kinds."""
PARTS = 6
"""Maximum number of parts of a list whose order does not matter."""
TAIL = 4 * LONGEST
"""Characters at the end of an answer in which its last number is looked for."""

PLAIN = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
POWER = r"(?:[eE][+-]?\d+|\s*(?:\\times|\\cdot|[*x×])\s*10\s*\^\s*(?:\{\s*[+-]?\d+\s*\}|[+-]?\d+))"
LAST = re.compile(rf"(?<![\w.])\d+ \d+/\d+|{PLAIN}{POWER}?(?:/{PLAIN})?")
"""A number in a sentence: mixed, or plain with a power of ten or a denominator."""
NUMBER = re.compile(rf"([+-]?)\s*({PLAIN}|\d{{1,3}}(?: \d{{3}})+|\d+\.)({POWER})?")
RATIO = re.compile(r"([+-]?)\s*(?:(\d+)\s+)?(\d+)\s*/\s*(\d+)|([+-]?)\s*(\d+)?\s*\\frac\s*\{(-?\d+)\}\s*\{(\d+)\}")
WORDS = re.compile(r"[A-Za-z][A-Za-z '.-]*")
ACCEPTED = re.compile(r"\((?:both|either|each|all)\b[^()]*\baccepted\)")
SEPARATORS = re.compile(r"\s+(?:or|and)\s+")


def boxed(text):
    """The content of the last \\boxed{...}; empty where it is cut off, None without any."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for found in re.finditer(r"\\.|[{}]", text[begin - 1 :], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return text[begin : begin - 1 + found.start()]
    return ""


def last_number(text):
    """The last number of a text with its sign, or the expression that it is a part of; empty without one."""
    text = text[-TAIL:].replace("−", "-").replace("–", "-")
    numbers = list(LAST.finditer(text))
    if not numbers:
        return ""
    found = numbers[-1]
    before, after = text[: found.start()], text[found.end() :]
    if re.search(r"[\^_{\\/]$|\d[,:/]$", before) or re.match(r"[\^}\\]|[/:]\d", after):
        return _around(text, found.start())
    # A minus next to the number is its sign; one apart from it is where nothing stands before that it could subtract from.
    signed = re.search(r"-$|(?:^|[^\w\s)}])\s*-\s*$|\b(?:is|equals|be)\s+-\s*$", before)
    return ("-" if signed else "") + found[0]


def _around(text, place):
    """The formula, or the word, that holds a place of a text; empty where its braces do not match."""
    spans = [(m.start(1), m.end(1)) for m in re.finditer(r"\$([^$]+)\$|\S+", text) if m[1] and m.start() <= place < m.end()]
    spans += [m.span() for m in re.finditer(r"\S+", text) if m.start() <= place < m.end()]
    start, end = spans[0]
    chunk = text[start:end].strip("*`\"'").rstrip(".,;:!?")
    return chunk if chunk.count("{") == chunk.count("}") else ""


def clean(text):
    """A final answer without what only typesets it."""
    text = text.replace("−", "-").replace("–", "-").replace("{,}", ",").replace("\\$", "")
    text = re.sub(r"(?<=\d)\s*\\[,;:! ]\s*(?=\d{3}(?!\d))", ",", text)  # 1\,234
    text = re.sub(r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle(?![a-z])|\\[()\[\],;:!]|\$|~", " ", text)
    text = re.sub(r"\\[dt]frac(?![a-z])", r"\\frac", text)
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{(\s*(?:or|and)\s*)\}", r" \1 ", text).strip()
    text = text.removesuffix(".").strip()
    while whole := re.fullmatch(r"(?:\\(?:text|textbf|mathrm|mathbf|mbox|boxed)\s*)?\{([^{}]*)\}", text):
        text = whole[1].strip()
    return text


def number(text):
    """The text as a number if it is one and nothing else, or None; also where it has more digits than anybody needs."""
    text = text.replace("−", "-").replace("$", "").strip()
    if len(text) > LONGEST:
        return None
    if ratio := RATIO.fullmatch(text):
        sign, whole, above, below = ratio.groups()[:4] if ratio[3] else ratio.groups()[4:]
        if not int(below):
            return None
        value = int(whole or 0) + Fraction(int(above), int(below))
        return -value if sign == "-" else value
    found = NUMBER.fullmatch(text)
    if not found:
        return None
    sign, digits, power = found.groups()
    exponent = int(re.search(r"[+-]?\d+\s*\}?$", power)[0].rstrip("} ")) if power else 0
    if abs(exponent) > LONGEST:
        return None
    return Fraction(sign + digits.replace(",", "").replace(" ", "")) * Fraction(10) ** exponent


def close(a, b):
    """Whether two numbers are the same but for the rounding of the sixth digit; whole numbers are not rounded."""
    if a.denominator == b.denominator == 1:
        return a == b
    return abs(a - b) <= Fraction(1, 10**6) * min(1, abs(b))


def parts(text):
    """How a list is enclosed (`(`, `{` or nothing) and its parts; one part where it is no list."""
    text, kind = text.strip(), ""
    if text.startswith("\\{") and text.endswith("\\}"):
        kind, text = "{", text[2:-2]
    elif re.fullmatch(r"\([^()\[\]]*\)", text):
        kind, text = "(", text[1:-1]
    found, depth, begin = [], 0, 0
    text = SEPARATORS.sub(",", text)
    for place, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char in ",;" and depth == 0:
            found.append(text[begin:place])
            begin = place + 1
    return kind, [part.strip() for part in (*found, text[begin:]) if part.strip()]


def value(text):
    """What stands behind the last equals sign."""
    return re.split(r"(?<![<>!=:])=(?!=)", text)[-1].strip()


async def same(answer, label):
    """Whether two answers are the same value."""
    a, b = clean(answer), clean(label)
    if a == b:
        return bool(a)
    if not a or len(a) > LONGEST or _depth(a) > DEEPEST:
        return False
    if "=" in a and "=" not in b:
        a = value(a)
    x, y = number(a), number(b)
    (kind, mine), (other, theirs) = parts(a), parts(b)
    if x is not None and y is not None:
        return close(x, y)
    if max(len(mine), len(theirs)) > 1 and not (kind == other == "("):
        if len(mine) != len(theirs) or {kind, other} == {"(", "{"}:
            return False
        return await _same_parts(mine, theirs, ordered="(" in (kind, other))
    if x is None and (NUMBER.fullmatch(a) or RATIO.fullmatch(a)):  # out of any range, or divided by 0
        return False
    if WORDS.fullmatch(words := _words(a)) and (y is not None or WORDS.fullmatch(_words(b))):
        return words == _words(b)
    if "\\\\" in a and "\\begin" not in a:  # two lines are two answers
        return False
    return await verified(a, b)


async def _same_parts(mine, theirs, ordered):
    ordered = ordered or len(mine) > PARTS
    orders = [tuple(range(len(mine)))] if ordered else permutations(range(len(mine)))
    equal = {(i, j): await same(a, b) for i, a in enumerate(mine) for j, b in enumerate(theirs) if not ordered or i == j}
    return any(all(equal[i, j] for j, i in enumerate(order)) for order in orders)


def _depth(text):
    depth = deepest = 0
    for char in text:
        depth += (char in "({[") - (char in ")}]")
        deepest = max(deepest, depth)
    return deepest


def _words(text):
    """A text of words without what only typesets it; letters alone are variables or choices, whose case counts."""
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    text = " ".join(text.strip().removesuffix(".").split())
    text = re.sub(r"^\(([A-Za-z])\)$", r"\1", text)
    return text if len(text) == 1 else text.lower()


def accepted(label):
    """The answers that a label accepts: a JSON list has several, and so has `80 or 81 (both were accepted)`."""
    if isinstance(label, list):
        return [one for each in label for one in accepted(each)]
    text = str(label)
    text = text.rpartition("####")[2].strip()  # GSM8K's layout: the solution, then the number
    text = boxed(text) or text
    if not ACCEPTED.search(text):
        return [text]
    text = ACCEPTED.sub("", text).strip()
    return [text, *parts(text)[1]]


async def right(text, label):
    """Whether a text's final answer is the label's.

    Raises:
        ValueError: There is no label.
    """
    answers = [one for one in accepted(label) if label is not None and one.strip()]
    if not answers:
        raise ValueError(
            f"the label is {label!r}; there is nothing to compare answers with (--data.label_key names its field)"
        )
    inside = boxed(text)
    for one in answers:
        if await same(_final(text, one) if inside is None else inside, one):
            return True
    return False


def _final(text, label):
    """The final answer of a text without a box: its last number, or what it says last where the label is words."""
    if not WORDS.fullmatch(_words(label)):
        return last_number(text)
    return re.split(r"\banswer is\b|[:=\n]", text[-TAIL:].strip(), flags=re.IGNORECASE)[-1].strip(" *`\"'")


async def score_outcome(trajectory):
    """1 for the right answer."""
    task = trajectory.task
    try:
        return float(await right(trajectory.answer or "", task.label))
    except ValueError as error:
        raise ValueError(f"task {task.id}: {error}") from None


# --- math-verify in a process of its own ------------------------------------------------------------------------------------


async def verified(answer, label):
    """What math-verify says; False where it needs too long, or too much memory.

    Raises:
        InfrastructureFailure: The process that runs it does not work.
    """
    ours, theirs = socket.socketpair()
    process, control = helper()
    try:
        with theirs:  # the helper's end, which it hands to a process for this question alone
            await _hand_over(control, theirs)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            writer.write(json.dumps([answer, label]).encode() + b"\n")
            verdict = await reader.read(1)
        finally:
            writer.close()
    except OSError:
        verdict = b""
    finally:
        ours.close()
    if not verdict and process.poll() is not None:
        from marl_plugins.core.failures import InfrastructureFailure

        helper.cache_clear()
        raise InfrastructureFailure("grader", f"the process that runs math-verify ended with {process.returncode}")
    return verdict == b"1"


async def _hand_over(control, end):
    """Give the helper the end of a connection, once it has taken those before."""
    while True:
        try:
            socket.send_fds(control, [b"?"], [end.fileno()])
            return
        except BlockingIOError:
            await asyncio.sleep(0.05)


@functools.cache
def helper():
    """The process that runs math-verify, and the socket that it is asked through; it ends when that is closed."""
    ours, theirs = socket.socketpair()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with theirs:  # -P: the modules beside this file are no libraries
        process = subprocess.Popen([sys.executable, "-P", __file__], stdin=theirs, start_new_session=True, **quiet)
    ours.setblocking(False)
    return process, ours


def serve(control):
    """Answer questions, each in a process of its own, as many at a time as there are cores."""
    for text in USUAL:  # fills the caches of its parser before the first fork: a question then takes milliseconds
        compare(text, text + "+1")
    running, most = 0, os.cpu_count() or 1
    while True:
        _, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not sockets:
            return
        while running and (running >= most or os.waitpid(-1, os.WNOHANG)[0]):
            if running >= most:
                os.wait()
            running -= 1
        if os.fork() == 0:
            try:
                control.close()
                answer_one(socket.socket(fileno=sockets[0]))
            finally:
                os._exit(0)
        running += 1
        os.close(sockets[0])


def answer_one(connection):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of CPU; its signal ends the process, whatever it is doing
    answer, label = json.loads(connection.makefile("rb").readline())
    connection.sendall(b"1" if compare(answer, label) else b"0")


def compare(answer, label):
    from math_verify import parse, verify

    gold, found = (parse(f"${text}$", parsing_timeout=None) for text in (label, answer))
    return bool(verify(gold, found, timeout_seconds=None))


if __name__ == "__main__":
    with socket.socket(fileno=0) as questions:
        serve(questions)
