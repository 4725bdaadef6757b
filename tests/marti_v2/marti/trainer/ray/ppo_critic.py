class CriticModelActor:
    def __init__(self, strategy, critic, tokenizer):
        self.strategy, self.critic, self.tokenizer = strategy, critic, tokenizer

    def save_model(self):
        args = self.strategy.args
        self.strategy.save_model(
            self.critic,
            self.tokenizer,
            args.save_path + "_critic",
        )
