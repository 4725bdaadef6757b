"""Forms in which honest models give an answer, whatever the task."""

ANSWER_FORMS = (
    *("{0}", "{0}.", " {0}\n", "**{0}**", "*{0}*", "`{0}`", '"{0}"', "({0})", "> {0}"),
    *(
        "Answer: {0}",
        "answer: {0}",
        "Answer:\n{0}",
        "**Answer:** {0}",
        "Answer: **{0}**",
        "**Answer: {0}**",
    ),
    *(
        "The answer is {0}.",
        "The answer is **{0}**.",
        "Final answer: {0}",
        "#### {0}",
        "<answer>{0}</answer>",
    ),
    *(
        "\\boxed{{{0}}}",
        "$\\boxed{{{0}}}$",
        "\\boxed {{{0}}}",
        "\\boxed{{{0}}} is what stands in \\boxed{{}}.",
    ),
    *(
        "**Answer:**\n\n{0}",
        "Final Answer:\n**{0}**",
        "#### Step by step\nI look.\n\n{0}",
        "The answer is clear.\n\n{0}",
    ),
)
"""Texts with the answer in the place of `{0}`, each of which a grader should pay as it pays the
answer alone."""
