"""What tests of captured backwards share."""

import bothways


class Captured:
    """A compiler that counts the modules it is given, and compiles each as one graph."""

    def __init__(self, backend="eager", **options):
        self.backend, self.options, self.modules = backend, {"fullgraph": True, **options}, []

    def __call__(self, module):
        self.modules.append(module)
        return bothways.compile(module, backend=self.backend, **self.options)
