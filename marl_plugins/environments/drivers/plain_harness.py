"""A conversation without tools, held in this process: verifiers' own starts a program for each."""

import asyncio
from typing import Any

from playing import post
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult

__all__ = ["PlainHarness"]


class PlainHarnessConfig(HarnessConfig):
    pass


class PlainHarness(Harness[PlainHarnessConfig]):
    """Asks once, and leaves the answer to the environment, which may go on from it."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: Any,
    ) -> ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        body = {"model": ctx.model, "messages": messages}
        try:
            await asyncio.to_thread(post, f"{endpoint}/chat/completions", secret, body, {})
        except OSError as error:
            return ProgramResult(1, "", str(error))
        return ProgramResult(0, "", "")
