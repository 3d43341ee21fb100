"""Small repos of every kind that is taken, with random weights, saved and loaded as their own libraries do."""

from tests.kinds.libraries import declare_operators

# Where all libraries are in one environment, transformers imports torchvision as soon as it is asked for a CLIP.
declare_operators()
