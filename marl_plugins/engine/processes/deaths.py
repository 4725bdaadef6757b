"""Ray raises one of these where a process of the run is gone: it died, or Ray's memory monitor has
killed it to free memory.

The second is no `RayActorError`, and does not say which process it was: of a request to a process,
that one.
"""

from ray.exceptions import OutOfMemoryError, RayActorError

DEATHS = (RayActorError, OutOfMemoryError)
Death = RayActorError | OutOfMemoryError
