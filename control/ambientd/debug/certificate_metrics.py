"""What is measured of the certificate authority (ca.md 16.1; operations.md 16.4): istiod's names where the meaning is
the same, and ours. Is told of events by those to whom they happen; must not look into anything by itself, and has no
label with the name of an account or a node."""

from __future__ import annotations

from collections.abc import Iterable

from ambientd.ca.orders import SignError
from ambientd.ca.roots import Expiry
from ambientd.debug.series import Counter, Gauge, Histogram, Series

_TIMES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class CertificateMetrics:
    """Is a `ca.service.Observer`."""

    def __init__(self) -> None:
        self._requests = Counter("citadel_server_csr_count", "Requests for certificates.")
        self._issued = Counter("citadel_server_success_cert_issuance_count", "Certificates issued.")
        self._refused = Counter(
            "citadel_server_authentication_failure_count",
            "Requests of callers who are not authenticated, or may not have the identity that they ask for.",
        )
        self._unreadable = Counter("citadel_server_csr_parsing_err_count", "Requests that cannot be read or verified.")
        self._failed = Counter("citadel_server_csr_sign_err_count", "Requests that were not signed.", ("error",))
        self._reasons = Counter("ambientd_ca_refusals", "Requests that were refused, by the condition.", ("reason",))
        self._turned_away = Counter("ambientd_ca_turned_away", "Requests that were told to come again later.")
        self._times = Histogram("ambientd_ca_issue_seconds", "From a request to its certificate.", _TIMES_S)
        self._restarts = Gauge("ambientd_ca_signer_restarts", "How often the signing process had to be started again.")
        self._unusable = Gauge(
            "ambientd_ca_unusable_material",
            "1: the key material that is given cannot be used, and the former is kept.",
        )
        self._ends = {
            "root": Gauge("citadel_server_root_cert_expiry_timestamp", "When the root expires, Unix time."),
            "chain": Gauge("citadel_server_cert_chain_expiry_timestamp", "When the chain expires, Unix time."),
        }
        self._left = {
            "root": Gauge("citadel_server_root_cert_expiry_seconds", "Until the root expires; negative: it has."),
            "chain": Gauge("citadel_server_cert_chain_expiry_seconds", "Until the chain expires; negative: it has."),
        }

    @property
    def series(self) -> tuple[Series, ...]:
        return (
            self._requests,
            self._issued,
            self._refused,
            self._unreadable,
            self._failed,
            self._reasons,
            self._turned_away,
            self._times,
            self._restarts,
            self._unusable,
            *self._ends.values(),
            *self._left.values(),
        )

    def certificate_requested(self) -> None:
        self._requests.add()

    def certificate_refused(self, reason: str) -> None:
        self._refused.add()
        self._reasons.add(reason)

    def certificate_failed(self, error: str) -> None:
        self._failed.add(error)
        if error == SignError.CSR.value:
            self._unreadable.add()

    def certificate_turned_away(self) -> None:
        self._turned_away.add()

    def certificate_issued(self, took_s: float) -> None:
        self._issued.add()
        self._times.observe(took_s)

    def recorded(self, expiries: Iterable[Expiry]) -> None:
        """What is in use now, and when it ends; what is not among these does not exist."""
        ends = {expiry.what: expiry.not_after_s for expiry in expiries}
        for what, gauge in self._ends.items():
            gauge.replace({(): ends[what]} if what in ends else {})

    def refresh(self, now_s: float) -> None:
        """Before a scrape. `now_s`: Unix time."""
        for what, gauge in self._left.items():
            gauge.replace({labels: end - now_s for labels, end in self._ends[what].values.items()})

    def restarted(self, times: int) -> None:
        """How often the signing process had to be started again so far."""
        self._restarts.set(times)

    def judged_material(self, *, is_usable: bool) -> None:
        """Whether the key material that is given now can be used."""
        self._unusable.set(0 if is_usable else 1)
