"""Every error tersor raises on purpose. Each message is one sentence and says the way out."""


class TersorError(Exception):
    """Base of all errors raised by tersor on purpose."""


class SpecError(TersorError, ValueError):
    """A bound, option, shape or dtype that cannot work; raised before anything is computed."""


class BackendUnavailableError(TersorError, RuntimeError):
    """A kernel or codec needs a package or device that is not present here."""


class CorruptDataError(TersorError, ValueError):
    """Bytes that no tersor writer produces: truncated, altered, or never ours."""


class MemoryLimitError(TersorError, MemoryError):
    """More memory than a limit allows, which is noticed before it is taken, or than there is."""


class UnsupportedVersionError(TersorError, ValueError):
    """Bytes written by a newer format or codec version than this tersor knows."""


class UnknownCodecError(TersorError, ValueError):
    """A codec id that is not in the registry."""


class ExchangeError(TersorError, RuntimeError):
    """An exchange between ranks failed: a peer died, timed out, or sent what cannot be."""
