class PolicyModelActor:
    def __init__(self, strategy, actor, tokenizer):
        self.strategy, self.actor, self.tokenizer = strategy, actor, tokenizer

    def save_model(self):
        args = self.strategy.args
        self.strategy.save_model(
            self.actor,
            self.tokenizer,
            args.save_path,
        )
