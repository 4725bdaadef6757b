class SandboxFusionExecutor:
    async def execute(self, parameters, **rest):
        return "42\n", {"run_status": "Finished"}
