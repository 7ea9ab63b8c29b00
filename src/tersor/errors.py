"""All errors that tersor raises deliberately. Each message is one sentence and states a remedy."""


class TersorError(Exception):
    """Base of all errors that tersor raises deliberately."""


class SpecError(TersorError, ValueError):
    """An invalid bound, option, shape or dtype; raised before anything is computed."""


class BackendUnavailableError(TersorError, RuntimeError):
    """A kernel or codec needs a package or device that is not available."""


class CorruptDataError(TersorError, ValueError):
    """Bytes that no tersor writer produces: truncated, altered or foreign."""


class MemoryLimitError(TersorError, MemoryError):
    """Memory beyond a limit, detected before allocation, or beyond what is available."""


class UnsupportedVersionError(TersorError, ValueError):
    """Bytes written by a newer format or codec version than this tersor knows."""


class UnknownCodecError(TersorError, ValueError):
    """A codec id that is not in the registry."""


class ExchangeError(TersorError, RuntimeError):
    """An exchange between ranks failed: a peer died, timed out or is out of step."""
