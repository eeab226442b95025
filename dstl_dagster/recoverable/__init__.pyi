from dstl_dagster.recoverable.commit import (
    CommitOutcome as CommitOutcome,
    CommitState as CommitState,
    Copied as Copied,
    CopiedSource as CopiedSource,
    FileCommit as FileCommit,
    delete_copied as delete_copied,
)
from dstl_dagster.recoverable.committer import GSRecoverableWriterCommitter as GSRecoverableWriterCommitter
from dstl_dagster.recoverable.compose_plan import (
    recoverable_hash as recoverable_hash,
    temporary_names as temporary_names,
)
from dstl_dagster.recoverable.fingerprint import fingerprint_of as fingerprint_of, is_own as is_own
from dstl_dagster.recoverable.recoverables import GSBlobIdentifier as GSBlobIdentifier
from dstl_dagster.recoverable.recoverables import (
    Component as Component,
    GSCommitRecoverable as GSCommitRecoverable,
    GSResumeRecoverable as GSResumeRecoverable,
)
from dstl_dagster.recoverable.serializers import (
    GSCommitRecoverableSerializer as GSCommitRecoverableSerializer,
    GSResumeRecoverableSerializer as GSResumeRecoverableSerializer,
)
from dstl_dagster.recoverable.stream import GSRecoverableFsDataOutputStream as GSRecoverableFsDataOutputStream
from dstl_dagster.recoverable.leftovers import plan_sweep as plan_sweep, sweep as sweep
from dstl_dagster.recoverable.writer import GSRecoverableWriter as GSRecoverableWriter
