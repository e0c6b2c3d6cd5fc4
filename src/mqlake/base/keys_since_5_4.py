"""Keys of RocketMQ 5.4 and 5.5 that 5.3.3 does not have, with the defaults of 5.5.1.

They are accepted, so that a configuration made for a newer broker need not be edited. Refused are those that would put
data where mqlake does not look for it: into RocksDB. Keys that mqlake acts on are fields, as all others.
"""

from __future__ import annotations

from mqlake.base.rocketmq_keys import harmless, refused, table
from mqlake.base.settings import UnusedKey

_NO_ROCKSDB = (
    "nothing is kept in RocksDB, and what a RocketMQ broker with this setting has written there would not be "
    "found. Remove the key, or run RocketMQ's broker"
)
_LITE = "There are no lite topics."

BROKER_KEYS: dict[str, UnusedKey] = table(
    refused(_NO_ROCKSDB, useSingleRocksDBForAllConfigs=False),
    harmless(
        _LITE,
        enableLitePopLog=False,
        liteEventCapacityCacheTtlMs=5000,
        liteEventCheckInterval=10000,
        liteEventFullDispatchDelayTime=10000,
        liteEventFullDispatchDelayTimeForWildcardGroup=10000,
        liteLagCountMetricsEnable=False,
        liteLagLatencyCollectEnable=False,
        liteLagLatencyMetricsEnable=False,
        liteLagLatencyTopK=50,
        liteSubscriptionCheckInterval=120000,
        liteSubscriptionCheckTimeoutMills=180000,
        liteTtlCheckInterval=120000,
        maxClientEventCount=100,
        maxLiteSubscriptionCount=100000,
        minLiteTTl=900000,
    ),
    harmless(
        "All metrics are there when one is asked for.",
        enableConnectionMetrics=True,
        enableLagAndDlqMetrics=True,
        enableMessageStoreMetrics=True,
        enablePopMetrics=True,
        enableRemotingMetrics=True,
        enableRequestMetrics=True,
        enableStatsMetrics=True,
        enableTransactionMetrics=True,
        metricsExportBatchMaxConcurrent=4,
        metricsExportBatchMaxDataPoints=1000,
        metricsExportBatchSplitEnabled=True,
        metricsExportOtelMemoryMode="IMMUTABLE_DATA",
    ),
    harmless(
        "Details of how the Java broker works.",
        batchDeleteSubscriptionGroupMaxRate=10.0,
        batchDeleteTopicMaxRate=10.0,
        enableSplitMetadata=True,
        splitMetadataSize=2000,
        persistConsumerOffsetIncrementally=False,
        maxMessageFilterNumForNotification=64,
        useMessageFilterForNotification=True,
        popOrderLockTimerTickMs=100,
        popOrderLockTimerTicksPerWheel=512,
        popPollingMapExpireTimeSeconds=600,
        popReviveConcurrency=32,
        popReviveSkipIfGroupAbsent=True,
        transactionCheckRocksdbCoreThreads=2,
        transactionCheckRocksdbMaxThreads=5,
        transactionCheckRocksdbQueueCapacity=2000,
    ),
)

STORE_KEYS: dict[str, UnusedKey] = table(
    refused(
        _NO_ROCKSDB,
        timerRocksDBEnable=False,
        transRocksDBEnable=False,
        transWriteOriginTransHalfEnable=True,
        combineCQPreferCQType="default",
        combineAssignOffsetCQType="default",
    ),
    harmless(
        "Nothing is kept in RocksDB.",
        combineCQEnableCheckSelf=False,
        combineCQLoadingCQTypes="default;defaultRocksDB",
        combineCQMaxExtraSearchCommitLogFiles=3,
        combineCQUseRocksdbForLmq=False,
        indexRocksDBEnable=False,
        iteratorWhenUseRocksdbConsumeQueue=True,
        maxRocksDBIndexQueryDays=7,
        popRocksdbBlockCacheSize=268435456,
        popRocksdbWriteBufferSize=33554432,
        rocksdbCQSelectiveDoubleWriteEnable=False,
        rocksdbMaxSizeAmplificationPercent=25,
        timerRecallToTimeWheelEnable=True,
        timerRecallToTimelineEnable=True,
        timerReputServiceCorePoolSize=6,
        timerReputServiceMaxPoolSize=6,
        timerReputServiceQueueCapacity=10000,
        timerRocksDBPrecisionMs=1000,
        timerRocksDBRollIntervalHours=1,
        timerRocksDBRollMaxTps=8000.0,
        timerRocksDBRollRangeHours=2,
        timerRocksDBStopScan=False,
        timerRocksDBTimeExpiredMaxTps=200000.0,
        useSeparateStorePathForRocksdbCQ=False,
    ),
    harmless(
        "The index is always written and read.",
        indexFileReadEnable=True,
        indexFileWriteEnable=True,
    ),
    harmless(
        "Details of how the Java store works.",
        checkCommitLogOffsetOnRecover=False,
        commitLogRecoverMaxNum=10,
        correctMinOffsetMadviseEnable=False,
        enableAcceleratedRecovery=False,
        enableLogConsumeQueueRepeatedlyBuildWhenRecover=False,
        enableRunningFlagsInFlush=False,
        maxCheckMessageReuseBufferSize=1048576,
        sharedByteBufferNum=16,
        timerWheelSnapshotFlush=False,
        timerWheelSnapshotIntervalMs=10000,
    ),
    harmless("There are no light queues.", enableLmqQuota=False),
)
