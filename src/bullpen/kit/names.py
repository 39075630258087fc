"""What Kubernetes accepts as a name, a label key and a label value.

Each function returns the error as a sentence for users, or None. Nothing here raises: the
caller knows the field and puts the sentence into an error.
"""

from __future__ import annotations

import re

DNS_LABEL_LENGTH_MAX = 63
DNS_SUBDOMAIN_LENGTH_MAX = 253
LABEL_NAME_LENGTH_MAX = 63
LABEL_VALUE_LENGTH_MAX = 63

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")


def dns_label_problem(text: str) -> str | None:
    """Why ``text`` is not an RFC 1123 label, such as a namespace's name."""
    if len(text) > DNS_LABEL_LENGTH_MAX:
        return f"must be no more than {DNS_LABEL_LENGTH_MAX} characters"
    if not _DNS_LABEL.fullmatch(text):
        return (
            "must be a lowercase RFC 1123 label: a-z, 0-9 and '-', "
            "beginning and ending with a letter or digit (such as 'my-lab')"
        )
    return None


def dns_subdomain_problem(text: str) -> str | None:
    """Why ``text`` is not an RFC 1123 subdomain, such as most objects' names."""
    if len(text) > DNS_SUBDOMAIN_LENGTH_MAX:
        return f"must be no more than {DNS_SUBDOMAIN_LENGTH_MAX} characters"
    if not _DNS_SUBDOMAIN.fullmatch(text):
        return (
            "must be a lowercase RFC 1123 subdomain: a-z, 0-9, '-' and '.', "
            "every part beginning and ending with a letter or digit (such as 'rpi4.lab-1')"
        )
    return None


def label_key_problem(text: str) -> str | None:
    """Why ``text`` is not a qualified name: an optional DNS prefix, '/', a short name."""
    prefix, slash, name = text.rpartition("/")
    if slash:
        if not prefix:
            return "the part before '/' must not be empty"
        problem = dns_subdomain_problem(prefix)
        if problem:
            return f"the part before '/' {problem}"
    return _label_name_problem(name)


def _label_name_problem(name: str) -> str | None:
    if not name:
        return "the name part must not be empty"
    if len(name) > LABEL_NAME_LENGTH_MAX:
        return f"the name part must be no more than {LABEL_NAME_LENGTH_MAX} characters"
    if not _LABEL_NAME.fullmatch(name):
        return (
            "the name part must consist of letters, digits, '-', '_' and '.', "
            "beginning and ending with a letter or digit (such as 'example.com/board')"
        )
    return None


def label_value_problem(text: str) -> str | None:
    """Why ``text`` cannot be a label's value. The empty string can."""
    if len(text) > LABEL_VALUE_LENGTH_MAX:
        return f"must be no more than {LABEL_VALUE_LENGTH_MAX} characters"
    if text and not _LABEL_NAME.fullmatch(text):
        return (
            "must be empty or consist of letters, digits, '-', '_' and '.', "
            "beginning and ending with a letter or digit (such as 'rpi4')"
        )
    return None


def data_key_problem(text: str) -> str | None:
    """Why ``text`` cannot be a key in a Secret or ConfigMap."""
    if len(text) > DNS_SUBDOMAIN_LENGTH_MAX:
        return f"must be no more than {DNS_SUBDOMAIN_LENGTH_MAX} characters"
    if not _DATA_KEY.fullmatch(text):
        return "must consist of letters, digits, '-', '_' and '.'"
    if text == "." or text.startswith(".."):
        return "must not be '.' or begin with '..'"
    return None
