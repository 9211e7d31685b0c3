"""Certificates: proven bounds on every action that a policy can take over a box of states.

`certify(policy, box)` returns a `Certificate`:

- `low`, `high`: by action, no action is lower or higher, for any state of the box;
- `worst`: by name of an action, the lowest and the highest action found (`Found`: value, state);
- `gap`: the largest distance from a bound to the worst action found, as a share of the range of
  actions found; `gaps` has it by action;
- `claims`: for `below=0.8` or `above=...`, a `Claim` with `result` ("proven", "refuted" or "not
  decided") and a `counterexample`;
- `box`, `arithmetic`, `seconds`, `may_not_act`, and `table()`.

`save_certificate(certificate, "certificate.json", run)` writes a certificate with its proof, and
`verify_certificate("certificate.json")` proves it again with an independent checker.

`table(policy, box, {"severity": [0, 1, 2]})` returns a `fat2thin.tables.Table` with a row per value
(or combination of values): `never_below`, `never_above`, `highest_found` and `gap_percent`.
"""

from fat2thin.safety.box import Box, BoxError, read_box
from fat2thin.safety.by_column import table
from fat2thin.safety.certificate_file import (
    is_certificate,
    save_certificate,
    verify_certificate,
)
from fat2thin.safety.certify import (
    OPEN,
    PROVEN,
    REFUTED,
    Certificate,
    Claim,
    Found,
    certify,
)
from fat2thin.safety.propagation import NotCertified

__all__ = [
    "OPEN", "PROVEN", "REFUTED", "Box", "BoxError", "Certificate", "Claim", "Found",
    "NotCertified", "certify", "is_certificate", "read_box", "save_certificate", "table",
    "verify_certificate",
]  # fmt: skip
