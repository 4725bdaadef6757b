class MultiAgentWrapper:
    async def add_requests(
        self, prompts, labels, metadatas=None, max_length=None, is_eval=False, tool_manager=None
    ):
        for number, (prompt, label) in enumerate(zip(prompts, labels, strict=True)):
            await self.workflow_func(
                prompt=prompt,
                label=label,
                agents=self.agents,
                metadata=metadatas,
                tool_manager=tool_manager,
                workflow_args=self.workflow_args,
                max_length=max_length,
                is_eval=is_eval,
                prompt_id=number,
                agent_step=None,
            )
