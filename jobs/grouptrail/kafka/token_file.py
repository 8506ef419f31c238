"""Access tokens in a file, which another program renews: a platform that mounts them, or an agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from grouptrail.kafka.errors import KafkaLoginError
from grouptrail.kafka.jwt import REMEDY, ClaimNames, access_token
from grouptrail.kafka.tokens import Token


@dataclass(frozen=True)
class TokenFile:
    """A file whose content is a token; it is read for each renewal."""

    path: str
    names: ClaimNames = field(default_factory=ClaimNames)

    @property
    def shown(self) -> str:
        """The file's path."""
        return self.path

    @property
    def remedy(self) -> str:
        """What to do if a broker refuses its token."""
        return REMEDY

    def request(self) -> Token:
        """Return the token. Raises KafkaLoginError."""
        try:
            with open(self.path, encoding="utf-8") as file:
                text = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise KafkaLoginError(
                f"the token file {self.path} cannot be read ({reason}): mount the token there, or check "
                'kafka."sasl.oauthbearer.token.endpoint.url"'
            ) from None
        return access_token(text, f"the file {self.path} has", self.names)
