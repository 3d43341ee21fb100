"""Name every recipe that there is, for whoever reads one from text."""

from sharding.recipes.cast import Cast
from sharding.recipes.fp8 import Fp8
from sharding.recipes.laid import Laid
from sharding.recipes.mxfp4 import Mxfp4
from sharding.recipes.stored import Stored

AnyRecipe = Stored | Laid | Fp8 | Mxfp4 | Cast
"""In JSON an object with its `kind`; those that a plan makes many of, of bytes as they lie and of a cast, are lists."""
