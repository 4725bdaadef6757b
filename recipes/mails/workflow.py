"""Reader -> router. Fields that are not in their form end it: nobody could file them."""

import re

FIELDS = re.compile(r"\d+ \w+ \w+")
"""Order, item and matter."""


async def run(task, roles, tools):
    fields = await roles.reader(mail=task.prompt)
    if not FIELDS.fullmatch(fields.text.strip()):
        return fields
    return await roles.router(fields=fields.text.strip(), after=[fields])
