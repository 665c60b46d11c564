"""Whether two engines may exchange KV.

Pure. What goes into the hash is what vLLM puts there, as far as this engine has it; what does not
is compared after the handshake. The model's revision and the lease settings are in neither, as in
vLLM: pairing only what belongs together is the router's business.

Source:
    vLLM 0.32.0, ``nixl/metadata.py`` (``compute_nixl_compatibility_hash``) and ``base_worker.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdcluster_lease.params import EngineId
    from pdcluster_lease.wire import AgentMetadata

__all__ = ["Compatibility"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """What one engine demands of its peers.

    Attributes:
        vllm_version: The release whose protocol it speaks.
        connector_version: vLLM's ``NIXL_CONNECTOR_VERSION``.
        model: The model string as given, verbatim.
        dtype: The data type as given.
        slot_bytes: Bytes of KV per token.
        block_size: Tokens per block.
        is_enforced: ``enforce_handshake_compat``: whether the hash is compared.
    """

    vllm_version: str
    connector_version: int
    model: str
    dtype: str
    slot_bytes: int
    block_size: int
    is_enforced: bool = True

    @property
    def hash(self) -> str:
        """The compatibility hash."""
        hashed = (
            self.vllm_version,
            self.connector_version,
            self.model,
            self.dtype,
            self.slot_bytes,
            "pull",
        )
        return sha256(repr(hashed).encode()).hexdigest()

    def hash_fault(self, other: str) -> str | None:
        """Say why a peer's hash cannot be accepted, or None."""
        if not self.is_enforced or other == self.hash:
            return None
        return (
            f"NIXL compatibility hash mismatch. Local: {self.hash}, Remote: {other}. Prefill and "
            "decode engines need the same vLLM version, model string and dtype. Disable this "
            "check with kv_connector_extra_config enforce_handshake_compat: false"
        )

    def metadata_fault(self, metadata: AgentMetadata, *, expected: EngineId) -> str | None:
        """Say why a peer cannot be read from, or None.

        A peer with another block size is rejected here. vLLM's CPU build lets it pass and then
        answers with wrong tokens; nobody gains from simulating that.
        """
        if metadata.engine_id != expected:
            return (
                f"Remote NIXL agent engine ID mismatch. Expected {expected}, "
                f"received {metadata.engine_id}."
            )
        block_bytes = self.slot_bytes * self.block_size
        if metadata.block_lens != (block_bytes,) or metadata.block_size != self.block_size:
            return (
                f"Remote blocks are {metadata.block_lens} bytes of {metadata.block_size} tokens, "
                f"ours ({block_bytes},) bytes of {self.block_size} tokens."
            )
        return None
