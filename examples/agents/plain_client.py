"""A solver and a checker with the plain client of OpenAI: the solver hears of an objection,
once."""

from openai import OpenAI

client = OpenAI()


def say(model, messages):
    return (
        client.chat.completions.create(model=model, messages=messages).choices[0].message.content
        or ""
    )


def main(prompt):
    talk = [{"role": "user", "content": f"{prompt} Answer with the number alone."}]
    for _ in range(2):
        solution = say("solver", talk)
        question = f"{prompt}\nAnswer: {solution}\nIs it right? Say yes, or what is wrong."
        verdict = say("checker", [{"role": "user", "content": question}])
        if "yes" in verdict.lower():
            break
        talk += [{"role": "assistant", "content": solution}, {"role": "user", "content": verdict}]
    return solution
