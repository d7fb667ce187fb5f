"""The language of configs, without the keys of any subject.

A YAML file becomes a config in this order:
- `yaml` reads text into plain data, `tree` finds values in it, and `overrides` sets values of ``-o``.
- `section` has the base class of all sections. `fields` (with `bounds`) has the types of their numbers, and
  `choices` the types of keys that select a component by name.
- `component` has the base class of components, which register themselves. Their rules about other sections
  read `facts`.
- `problems` is what a validator raises; `errors` joins all problems of a config into one message.
"""
