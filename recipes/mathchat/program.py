"""MathChat as a plain program. Of the training it knows a header alone, in which it says whose
answers it shows."""

from pathlib import Path

from openai import OpenAI

PROMPTS = Path(__file__).parent / "prompts" / "tiny"
client = OpenAI()


def ask(role, *shown, **fields):
    content = (PROMPTS / f"{role}.md").read_text().format(**fields)
    after = {"x-marl-after": ",".join(answer.id for answer in shown)}
    return client.chat.completions.create(
        model=role, messages=[{"role": "user", "content": content}], extra_headers=after
    )


def text(answer):
    return answer.choices[0].message.content


def main(prompt):
    solution = ask("solver", problem=prompt)
    code = ask("coder", solution, problem=prompt, solution=text(solution))
    computed = getattr(code.choices[0].message, "tool_output", "") or text(code)
    return text(
        ask("verifier", code, solution, problem=prompt, solution=text(solution), computed=computed)
    )
