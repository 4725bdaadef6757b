class MultiAgent_RemoteExperienceMaker:
    def __init__(self, agent_list):
        self.agent_list, self.groups = agent_list, None

    def make_experience(self, samples_list):
        self.groups = {}
        for place, (agent, _) in enumerate(samples_list):
            self.groups.setdefault(agent, []).append(place)
        return samples_list

    def get_agent_experiences(self, samples_list):
        agent_experience_list = []
        for aid in sorted(self.groups.keys()):
            indices = self.groups[aid]
            agent_samples = [samples_list[i] for i in indices]
            agent_experience_list.append(agent_samples)
        return agent_experience_list
