"""Classes that are a Keras class plus one of our mixins, and objects that change into them.

A *twin* of a class has its name, module and config, so that what is saved with it loads in plain
Keras. An object becomes its class's twin in place: whoever holds it sees the same object.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from keras.src import api_export
from keras.src.saving import object_registration

# The base of our mixins. What they stand in front of is another class in each twin, which a type
# checker cannot see.
Mixin: Any = object


def twin(mixin: type, cls: type) -> type:
    """Returns the class `cls` extended by `mixin`, always the same one; `cls` if it already is."""
    return cls if issubclass(cls, mixin) else _twin(mixin, cls)


@functools.cache
def _twin(mixin: type, cls: type) -> type:
    public = api_export.get_name_from_symbol(cls)
    module = cls.__module__ if public is None else public.rpartition(".")[0]
    names = {"__module__": module, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    made = types.new_class(cls.__name__, (mixin, cls), exec_body=lambda body: body.update(names))
    registered = object_registration.GLOBAL_CUSTOM_NAMES.get(cls)
    if registered is not None:
        # A class that its user registered is saved under the registered name.
        object_registration.GLOBAL_CUSTOM_NAMES[made] = registered
    return made


def become_twin(instance: Any, mixin: type) -> None:
    """Makes `instance` an object of the twin of its class; does nothing if it already is."""
    if not isinstance(instance, mixin):
        object.__setattr__(instance, "__class__", twin(mixin, type(instance)))
