"""The database of tests/ddl: a source, a function, and an empty stream table over both."""

from tests.ddl.conftest import made18 as made18
