"""Mark a test with what it holds: `@promise("docs/security.md#get-a-file-outside-a-local-folder")`.

A place is a page with a heading, or with the first words of an item in a list of what somebody cannot do.
`tests/docs/test_promises.py` says which places need a test.
"""

import pytest


def promise(*places: str) -> pytest.MarkDecorator:
    """Return a marker that names the `places` where README or docs promise what the test holds."""
    return pytest.mark.promise(*places)
