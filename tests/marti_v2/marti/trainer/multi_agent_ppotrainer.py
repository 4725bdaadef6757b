class BasePPOTrainer:
    """Stands for the single-agent trainer."""


class MultiAgent_PPOTrainer(BasePPOTrainer):
    def __init__(
        self,
        pretrain,
        strategy,
        agent_list,
        prompt_max_len=0,
        dataloader_pin_memory=True,
        prompt_split="",
        eval_split="",
        **rest,
    ):
        self.args, self.agent_list, self.num_agents = strategy.args, agent_list, len(agent_list)
        self.experience_maker, self.batches = rest["experience_maker"], rest["batches"]
        self.pass_rate = [None for _ in range(self.num_agents)]

    def fit(self):
        for episode in range(1):
            for samples in self.batches:
                experiences = self.experience_maker.get_agent_experiences(
                    self.experience_maker.make_experience(samples)
                )

                # dynamic filtering for multi agent
                self.pass_rate = [None for _ in range(self.num_agents)]
                if getattr(self.args, "dynamic_filtering_for_agents", False):
                    for idx, samples in enumerate(experiences):
                        self.pass_rate[idx] = 50.0 if samples else None

                for idx in range(self.num_agents):
                    if experiences[idx] is not None:
                        # Only append experience for agents with actor model (is_tuning=True)
                        self.agent_list[idx].append(experiences[idx])
                self.ppo_train(episode)

    def ppo_train(self, global_steps):
        for agent_idx, agent in enumerate(self.agent_list):
            if self.pass_rate[agent_idx] is None:
                continue
            agent.fit()
