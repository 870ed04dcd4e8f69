"""TLS for the HTTP side: the certificate's files, checked before anything is loaded."""

import ssl

from ipc.config import GatewayConfig
from ipc.errors import ConfigError

CERT_REQS = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def make_tls(config: GatewayConfig) -> ssl.SSLContext | None:
    """None without a certificate. Raises ConfigError, naming the flag, for files that do not work."""
    if config.ssl_certfile is None:
        for name in ("ssl_keyfile", "ssl_ca_certs"):
            if getattr(config, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')}: goes with --ssl-certfile, which is not given")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=_no_password)
    except (OSError, ssl.SSLError) as error:  # which of the two it is, OpenSSL does not say
        files = f"--ssl-certfile {config.ssl_certfile}"
        if config.ssl_keyfile is not None:
            files += f", --ssl-keyfile {config.ssl_keyfile}"
        raise ConfigError(f"{files}: {error}") from error
    if config.ssl_cert_reqs != "none" and config.ssl_ca_certs is None:
        raise ConfigError(f"--ssl-cert-reqs {config.ssl_cert_reqs}: needs --ssl-ca-certs")
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--ssl-ca-certs {config.ssl_ca_certs}: {error}") from error
    context.verify_mode = CERT_REQS[config.ssl_cert_reqs]
    return context


def _no_password() -> str:
    """Instead of OpenSSL's question on the terminal."""
    raise ConfigError("--ssl-keyfile: the key is encrypted; give one that is not, readable by this user alone")
