import argparse
import json
import os


class ray:
    """Stands for Ray: everything is there at once."""

    @staticmethod
    def get(values):
        return values


def train(args): ...


def init_agent(
    agent_id, agent_config, global_config, strategy, pg_id, unified_pg_list, global_seed, max_steps
): ...


class Agent:
    def __init__(self, agent_id, agent_config, actor_model_group, critic_model_group):
        self.agent_id, self.agent_config = agent_id, agent_config
        self.actor_model_group, self.critic_model_group = actor_model_group, critic_model_group

    def get_metadata(self):
        return {"agent_id": self.agent_id}

    def save_actor_and_critic_model(self):
        if self.agent_config["is_tuning"]:
            ray.get(self.actor_model_group.async_save_model())
            if self.agent_config["critic_pretrain"] and self.agent_config["save_value_network"]:
                ray.get(self.critic_model_group.async_save_model())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=json.loads, nargs="+", required=True)
    parser.add_argument("--default_agent", type=json.loads, default={})
    parser.add_argument("--shared_agents", action="store_true")
    parser.add_argument("--workflow_args", type=json.loads, default={})
    parser.add_argument("--workflow_func_path", default=None)
    parser.add_argument("--processor_func_path", default=None)
    parser.add_argument("--save_path", default=os.curdir)
