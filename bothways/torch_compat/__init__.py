"""The one door to PyTorch's private names, and the place for what differs between its versions.

Everything here is a thin name for something PyTorch has; nothing here knows about bothways.
"""

from bothways.torch_compat.cuda_graphs import *  # noqa: F403
from bothways.torch_compat.distributed import *  # noqa: F403
from bothways.torch_compat.forward_settings import *  # noqa: F403
from bothways.torch_compat.functionalizing import *  # noqa: F403
from bothways.torch_compat.functions import *  # noqa: F403
from bothways.torch_compat.kernels import *  # noqa: F403
from bothways.torch_compat.names import *  # noqa: F403
from bothways.torch_compat.no_memory import *  # noqa: F403
from bothways.torch_compat.products import *  # noqa: F403
from bothways.torch_compat.saved import *  # noqa: F403
from bothways.torch_compat.tensor_memory import *  # noqa: F403
from bothways.torch_compat.tensor_words import *  # noqa: F403
from bothways.torch_compat.training import *  # noqa: F403
from bothways.torch_compat.views import *  # noqa: F403
from bothways.torch_compat.wanted import *  # noqa: F403
