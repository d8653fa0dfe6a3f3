"""The part of Ray that Ape-X and sweeps use, in one process: a call runs when it is made."""

from collections.abc import Callable
from typing import Any


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class ObjectLostError(RayError):
    pass


class WorkerCrashedError(RayError):
    pass


class TaskCancelledError(RayError):
    pass


class Ref:
    """A value, or the error that was raised instead."""

    def __init__(self, value: Any = None, error: Exception | None = None):
        self.value, self.error = value, error


class Handle:
    """An actor; after `kill` Ray restarts it for the next call, or all calls fail."""

    def __init__(self, make: Callable[[], Any], restarts: bool):
        self._make = make
        self.restarts = restarts
        self.instance = make()
        self.is_dead = False
        self.calls: list[str] = []

    def kill(self) -> None:
        self.is_dead = True

    def restart(self) -> None:
        self.instance, self.is_dead = self._make(), False

    def __getattr__(self, name: str) -> "Method":
        return Method(self, name)


class Method:
    def __init__(self, handle: Handle, name: str, num_returns: int = 1):
        self._handle, self._name, self._num_returns = handle, name, num_returns

    def options(self, *, num_returns: int) -> "Method":
        return Method(self._handle, self._name, num_returns)

    def remote(self, *arguments, **named) -> Any:
        handle = self._handle
        handle.calls.append(self._name)
        if handle.is_dead and not handle.restarts:
            return Ref(error=RayActorError("killed"))
        if handle.is_dead:
            handle.restart()
        values = [a.value if isinstance(a, Ref) else a for a in arguments]
        if self._name == "__ray_ready__":
            return Ref(True)
        try:
            value = getattr(handle.instance, self._name)(*values, **named)
        except Exception as error:
            return Ref(error=error)
        return Ref(value) if self._num_returns == 1 else [Ref(part) for part in value]


class Task:
    """A remote function; `ray.tasks` records the options of its calls."""

    def __init__(self, ray: "FakeRay", function: Callable[..., Any]):
        self._ray, self._function = ray, function

    def options(self, **options) -> "Task":
        self._ray.tasks.append(options)
        return self

    def remote(self, *arguments) -> Ref:
        try:
            return Ref(self._function(*arguments))
        except Exception as error:
            return Ref(error=error)


class FakeRay:
    class exceptions:  # noqa: N801
        RayError = RayError
        RayActorError = RayActorError
        GetTimeoutError = GetTimeoutError
        ObjectLostError = ObjectLostError
        TaskCancelledError = TaskCancelledError

    def __init__(self):
        self.handles: list[Handle] = []
        self.tasks: list[dict[str, Any]] = []
        self.function_options: dict[str, Any] = {}
        self.puts = 0

    def remote(self, *, max_restarts: int = 0, **options):
        def wrap(kind):
            if not isinstance(kind, type):
                self.function_options = options
                return Task(self, kind)

            class Remote:
                @staticmethod
                def remote(**arguments):
                    handle = Handle(lambda: kind(**arguments), restarts=max_restarts == -1)
                    self.handles.append(handle)
                    return handle

            return Remote

        return wrap

    def put(self, value):
        self.puts += 1
        return Ref(value)

    def get(self, refs, timeout=None):
        if isinstance(refs, list):
            return [self.get(ref) for ref in refs]
        if refs.error is not None:
            raise refs.error
        return refs.value

    def wait(self, refs, num_returns=1, timeout=None):
        return refs[:num_returns], refs[num_returns:]

    def nodes(self):
        return [
            {"Alive": True, "Resources": {"CPU": 4.0, "memory": 8e9}},
            {"Alive": False, "Resources": {}},
        ]

    def cancel(self, ref):
        pass

    def shutdown(self):
        pass
