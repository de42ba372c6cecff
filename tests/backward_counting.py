"""What tests of captured backwards share."""

import bothways
from bothways.torch_compat import wanted


def errors_of_the_engine(monkeypatch):
    """What the engine has answered with an error, when it was asked whether it will come to a node."""
    errors, ask = [], wanted._will_run

    def counting(node):
        try:
            return ask(node)
        except RuntimeError as error:
            errors.append(error)
            raise

    monkeypatch.setattr(wanted, "_will_run", counting)
    return errors


class Captured:
    """A compiler that counts the modules it is given, and compiles each as one graph."""

    def __init__(self, backend="eager", **options):
        self.backend, self.options, self.modules = backend, {"fullgraph": True, **options}, []

    def __call__(self, module):
        self.modules.append(module)
        return bothways.compile(module, backend=self.backend, **self.options)
