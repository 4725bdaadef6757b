class RayActorGroup:
    """Calls a method on all its actors, here at once."""

    def __init__(self, actors):
        self.actors = actors

    def async_save_model(self):
        return self.async_run_method("save_model")

    def async_run_method(self, method_name, *args, **kwargs):
        return [getattr(actor, method_name)(*args, **kwargs) for actor in self.actors]
