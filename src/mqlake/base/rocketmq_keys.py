"""Keys of RocketMQ 5.3.3 that mqlake does not act on: harmless ones, and those it refuses.

A key is refused when ignoring it would endanger data or access: a configuration that asks for authentication must not
start an open broker, and one that waits for a replica must not acknowledge without it. Its default is accepted, as it
asks for nothing. Harmless keys are accepted with any value and reported, so that a configuration made for Java need not
be edited.

The keys that mqlake acts on are the fields of BrokerConfig, MessageStoreConfig and NamesrvConfig. Together they are all
keys of Java's classes, with Java's defaults (numbers of threads: on 4 processors); tests/interop compares them.
"""

from __future__ import annotations

from mqlake.base.settings import UnusedKey, Value


def harmless(why: str, **keys: Value) -> list[UnusedKey]:
    return [UnusedKey(key=key, default=default, why=why, refused=False) for key, default in keys.items()]


def refused(why: str, **keys: Value) -> list[UnusedKey]:
    return [UnusedKey(key=key, default=default, why=why, refused=True) for key, default in keys.items()]


def table(*groups: list[UnusedKey]) -> dict[str, UnusedKey]:
    return {known.key: known for group in groups for known in group}


_NO_SYNC_STATE_SET = (
    "sync-state sets need controllers, which are not there, so messages would be acknowledged with fewer replicas. "
    "Remove the key and set inSyncReplicas, or run RocketMQ's broker"
)

AUTH_KEYS: dict[str, UnusedKey] = table(
    harmless(
        "Decisions are kept until users or acls change, and users and acls are in memory.",
        configName=None,
        clusterName=None,
        userCacheMaxNum=1000,
        userCacheExpiredSecond=600,
        userCacheRefreshSecond=60,
        aclCacheMaxNum=1000,
        aclCacheExpiredSecond=600,
        aclCacheRefreshSecond=60,
        statefulAuthenticationCacheMaxNum=10000,
        statefulAuthenticationCacheExpiredSecond=60,
        statefulAuthorizationCacheMaxNum=10000,
        statefulAuthorizationCacheExpiredSecond=60,
    ),
)
"""Of AuthConfig."""

BROKER_KEYS: dict[str, UnusedKey] = table(
    refused(
        "controllers are not there yet: two brokers could act as master at once. Remove the key, or run "
        "RocketMQ's broker",
        enableControllerMode=False,
    ),
    refused(
        "plug-ins of the Java store cannot be loaded. Remove the key, or run RocketMQ's broker",
        messageStorePlugIn="",
    ),
    refused("topics, groups and offsets in RocksDB cannot be read", configManagerVersion="v1"),
    harmless(
        "Requests run on one event loop; there are no thread pools and no queues in front of them.",
        recoverConcurrently=False,
        sendMessageThreadPoolNums=4,
        putMessageFutureThreadPoolNums=4,
        pullMessageThreadPoolNums=24,
        litePullMessageThreadPoolNums=24,
        ackMessageThreadPoolNums=16,
        processReplyMessageThreadPoolNums=24,
        queryMessageThreadPoolNums=12,
        adminBrokerThreadPoolNums=16,
        clientManageThreadPoolNums=32,
        consumerManageThreadPoolNums=32,
        loadBalanceProcessorThreadPoolNums=32,
        heartbeatThreadPoolNums=4,
        recoverThreadPoolNums=32,
        endTransactionThreadPoolNums=16,
        sendThreadPoolQueueCapacity=10000,
        putThreadPoolQueueCapacity=10000,
        pullThreadPoolQueueCapacity=100000,
        litePullThreadPoolQueueCapacity=100000,
        ackThreadPoolQueueCapacity=100000,
        replyThreadPoolQueueCapacity=10000,
        queryThreadPoolQueueCapacity=20000,
        clientManagerThreadPoolQueueCapacity=1000000,
        consumerManagerThreadPoolQueueCapacity=1000000,
        heartbeatThreadPoolQueueCapacity=50000,
        endTransactionPoolQueueCapacity=100000,
        adminBrokerThreadPoolQueueCapacity=10000,
        loadBalanceThreadPoolQueueCapacity=100000,
        highSpeedMode=False,
        waitTimeMillsInPullQueue=5000,
        waitTimeMillsInLitePullQueue=5000,
        waitTimeMillsInHeartbeatQueue=31000,
        waitTimeMillsInTransactionQueue=3000,
        waitTimeMillsInAckQueue=3000,
        waitTimeMillsInAdminBrokerQueue=5000,
        enableNetWorkFlowControl=False,
        enableFastChannelEventProcess=False,
    ),
    harmless(
        "Details of how Java's pop works. Here acknowledgements of a checkpoint are written together, requests that "
        "wait are woken by every arrival, and acknowledgements without a checkpoint hold up nothing.",
        popPollingMapSize=100000,
        reviveMaxSlow=3,
        reviveScanTime=10000,
        enableSkipLongAwaitingAck=False,
        reviveAckWaitMs=180000,
        enablePopLog=False,
        enablePopBatchAck=False,
        popLongPollingForceNotifyInterval=800,
        enableNotifyBeforePopCalculateLag=True,
        enableNotifyAfterPopOrderLockRelease=True,
        skipWhenCKRePutReachMaxTimes=False,
        appendAckAsync=False,
        appendCkAsync=False,
        popConsumerFSServiceInit=True,
        popConsumerKVServiceLog=False,
        popReviveMaxReturnSizePerRead=16384,
        popReviveMaxAttemptTimes=16,
    ),
    refused(
        "pop's checkpoints in RocksDB are not supported; they are kept in the revive topic",
        popConsumerKVServiceInit=False,
        popConsumerKVServiceEnable=False,
    ),
    harmless(
        "Controllers, broker containers and slaves that act as masters are not there yet.",
        sendHeartbeatTimeoutMillis=1000,
        brokerHeartbeatInterval=1000,
        brokerNotActiveTimeoutMillis=10000,
        syncBrokerMemberGroupPeriod=1000,
        cleanOfflineBrokerInterval=30000,
        enableSlaveActingMaster=False,
        enableRemoteEscape=False,
        skipPreOnline=False,
        asyncSendEnable=True,
        lockInStrictMode=False,
        compatibleWithOldNameSrv=True,
        controllerAddr="",
        fetchControllerAddrByDnsLookup=False,
        syncBrokerMetadataPeriod=5000,
        checkSyncStateSetPeriod=5000,
        syncControllerMetadataPeriod=10000,
        controllerHeartBeatTimeoutMills=10000,
        brokerElectionPriority=2147483647,
        isBrokerContainer=False,
        isInBrokerContainer=False,
    ),
    harmless(
        "Statistics are always counted, and metrics are served to Prometheus only.",
        flushConsumerOffsetHistoryInterval=60000,
        commercialBaseCount=1,
        commercialSizePerMsg=4096,
        accountStatsEnable=True,
        accountStatsPrintZeroValues=True,
        maxStatsIdleTimeInMinutes=-1,
        enableDetailStat=True,
        autoDeleteUnusedStats=True,
        isolateLogEnable=False,
        metricsGrpcExporterTarget="",
        metricsGrpcExporterHeader="",
        metricGrpcExporterTimeOutInMills=3000,
        metricGrpcExporterIntervalInMills=60000,
        metricLoggingExporterIntervalInMills=10000,
        metricsInDelta=False,
        estimateAccumulation=True,
        printChannelGroups=False,
        printChannelGroupsMinNum=5,
        enableLmqStats=False,
    ),
    harmless(
        "The name servers are those of namesrvAddr.",
        fetchNameSrvAddrByDnsLookup=False,
        fetchNamesrvAddrByAddressServer=False,
        compressedRegister=False,
        updateNameServerAddrPeriod=120000,
        fetchNamesrvAddrInterval=10000,
    ),
    harmless(
        "Reads of cold data are not limited.",
        coldCtrStrategyEnable=False,
        usePIDColdCtrStrategy=True,
        cgColdReadThreshold=3145728,
        globalColdReadThreshold=104857600,
    ),
    harmless(
        "What the default says is what happens, whatever is set.",
        transferMsgByHeap=True,
        disableConsumeIfConsumerReadSlowly=False,
        consumerFallbehindThreshold=17179869184,
        realTimeNotifyConsumerChange=True,
        useStaticSubscription=False,
        enableMixedMessageType=False,
        enableRegisterProducer=True,
    ),
    harmless(
        "Filters are evaluated when messages are pulled, not when they are stored.",
        enableCalcFilterBitMap=False,
    ),
    harmless(
        "Offsets of broadcasting consumers are not kept at the broker.",
        enableBroadcastOffsetStore=True,
        broadcastOffsetExpireSecond=120,
        broadcastOffsetExpireMaxSecond=300,
    ),
    harmless("There is no directory of an installation.", rocketmqHome=None),
)
"""Of BrokerConfig."""

STORE_KEYS: dict[str, UnusedKey] = table(
    refused(_NO_SYNC_STATE_SET, allAckInSyncStateSet=False),
    refused(
        "light queues are not there yet, so messages to them would reach no consumer. Remove the key, or run "
        "RocketMQ's broker",
        enableLmq=False,
        enableMultiDispatch=False,
    ),
    refused("consume queues in RocksDB are not supported", storeType="default"),
    refused("DLedger's commit log is another format", enableDLegerCommitLog=False),
    refused("a commit log over several directories is not supported", readOnlyCommitLogStorePaths=None),
    harmless(
        "Details of how the Java timers work.",
        timerGetMessageThreadNum=3,
        timerPutMessageThreadNum=3,
        timerEnableDisruptor=False,
        timerEnableCheckMetrics=True,
        timerInterceptDelayLevel=False,
        timerCheckMetricsWhen="05",
        timerSkipUnknownError=False,
        timerWarmEnable=False,
        timerEnableRetryUntilSuccess=False,
        timerMetricSmallThreshold=1000000,
        timerProgressLogIntervalMs=10000,
        timerColdDataCheckIntervalMs=60000,
    ),
    harmless(
        "They belong to DLedger, to controllers, or to modes of replication that are not there.",
        storePathDLedgerCommitLog=None,
        storePathEpochFile=None,
        storePathBrokerIdentity=None,
        duplicationEnable=False,
        dLegerGroup=None,
        dLegerPeers=None,
        dLegerSelfId=None,
        preferredLeaderId=None,
        haMaxTimeSlaveNotCatchup=15000,
        syncMasterFlushOffsetWhenStartup=False,
        maxChecksumRange=1073741824,
        replicasPerDiskPartition=1,
        maxSlaveResendLength=268435456,
        asyncLearner=False,
    ),
    harmless(
        "Nothing is kept in RocksDB.",
        cleanRocksDBDirtyCQIntervalMin=60,
        statRocksDBCQIntervalSec=10,
        memTableFlushIntervalMs=3600000,
        realTimePersistRocksDBConfig=True,
        enableRocksDBLog=False,
        rocksdbCQDoubleWriteEnable=False,
        bottomMostCompressionTypeForConsumeQueueStore="zstd",
        rocksdbCompressionType="lz4",
        rocksdbFlushWalFrequency=1024,
        rocksdbWalFileRollingThreshold=1073741824,
    ),
    harmless(
        "Topics are not compacted: consumers get every message.",
        compactionMappedFileSize=104857600,
        compactionCqMappedFileSize=10485760,
        compactionScheduleInternal=900000,
        maxOffsetMapSize=104857600,
        compactionThreadNum=6,
        enableCompaction=True,
    ),
    harmless(
        "Mapped files are left to the kernel.",
        mappedFileSwapEnable=True,
        commitLogForceSwapMapInterval=43200000,
        commitLogSwapMapInterval=3600000,
        commitLogSwapMapReserveFileNum=100,
        logicQueueForceSwapMapInterval=43200000,
        logicQueueSwapMapInterval=3600000,
        cleanSwapedMapInterval=300000,
        logicQueueSwapMapReserveFileNum=20,
    ),
    harmless(
        "Reads of cold data are not limited.",
        coldDataFlowControlEnable=False,
        coldDataScanEnable=False,
        sampleSteps=32,
        accessMessageInMemoryHotRatio=26,
    ),
    harmless(
        "Puts take one lock and sleep while they wait for it: a spinning thread would keep the holder from running.",
        useReentrantLockWhenPutMessage=True,
        useABSLock=False,
        spinLockCollisionRetreatOptimalDegree=1000,
    ),
    harmless(
        "Details of how the Java store works.",
        bitMapLengthConsumeQueueExt=64,
        maxRecoveryCommitlogFiles=30,
        deleteConsumeQueueFilesInterval=100,
        destroyMapedFileIntervalForcibly=120000,
        redeleteHangedFileInterval=120000,
        putMsgIndexHightWater=600000,
        putMessageTimeout=8000,
        flushDelayOffsetInterval=10000,
        debugLockEnable=False,
        diskFallRecorded=True,
        defaultQueryMaxNum=32,
        enableBatchPush=False,
        enableScheduleMessageStats=True,
        maxLmqConsumeQueueNum=20000,
        enableScheduleAsyncDeliver=False,
        scheduleAsyncDeliverMaxPendingLimit=2000,
        scheduleAsyncDeliverMaxResendNum2Blocked=3,
        maxBatchDeleteFilesNum=50,
        dispatchCqThreads=10,
        dispatchCqCacheNum=4096,
        enableAsyncReput=True,
        recheckReputOffsetFromCq=False,
        maxTopicLength=127,
        travelCqFileNumWhenGetMessage=1,
        correctLogicMinOffsetSleepInterval=1,
        correctLogicMinOffsetForceInterval=300000,
        searchBcqByCacheEnable=True,
        dispatchFromSenderThread=False,
        enableCleanExpiredOffset=False,
        maxAsyncPutMessageRequests=5000,
        pullBatchMaxMessageCount=160,
        logicalDiskSpaceCleanForciblyThreshold=0.8,
        maxConsumeQueueScan=20000,
        sampleCountThreshold=5000,
        enableBuildConsumeQueueConcurrently=False,
        batchDispatchRequestThreadPoolNums=16,
        topicQueueLockNum=32,
        putConsumeQueueDataByFileChannel=True,
    ),
)
"""Of MessageStoreConfig."""

REMOTING_KEYS: dict[str, UnusedKey] = table(
    refused("other servers would be called without TLS. Set tls.enable=true instead", useTLS=False),
    harmless(
        "Netty's threads, buffers and limits; connections here belong to one event loop.",
        serverWorkerThreads=8,
        serverCallbackExecutorThreads=0,
        serverSelectorThreads=3,
        serverOnewaySemaphoreValue=256,
        serverAsyncSemaphoreValue=64,
        serverSocketSndBufSize=0,
        serverSocketRcvBufSize=0,
        writeBufferHighWaterMark=0,
        writeBufferLowWaterMark=0,
        serverSocketBacklog=1024,
        serverNettyWorkerGroupEnable=True,
        serverPooledByteBufAllocatorEnable=True,
        enableShutdownGracefully=False,
        shutdownWaitTimeSeconds=30,
        useEpollNativeSelector=False,
        clientWorkerThreads=4,
        clientCallbackExecutorThreads=4,
        clientOnewaySemaphoreValue=65535,
        clientAsyncSemaphoreValue=65535,
        connectTimeoutMillis=3000,
        channelNotActiveInterval=60000,
        isScanAvailableNameSrv=True,
        clientChannelMaxIdleTimeSeconds=120,
        clientSocketSndBufSize=0,
        clientSocketRcvBufSize=0,
        clientPooledByteBufAllocatorEnable=False,
        clientCloseSocketIfTimeout=True,
        socksProxyConfig="{}",
        disableCallbackExecutor=False,
        disableNettyWorkerGroup=False,
        maxReconnectIntervalTimeSeconds=60,
        enableReconnectForGoAway=True,
    ),
)
"""Of NettyServerConfig and NettyClientConfig."""

NAMESRV_KEYS: dict[str, UnusedKey] = table(
    refused(
        "the controller is not there yet: brokers in controller mode would never elect a master. Run "
        "RocketMQ's controller",
        enableControllerInNamesrv=False,
    ),
    harmless(
        "Details of how the Java name server works.",
        rocketmqHome=None,
        productEnvName="center",
        clusterTest=False,
        clientRequestThreadPoolNums=8,
        defaultThreadPoolNums=16,
        clientRequestThreadPoolQueueCapacity=50000,
        defaultThreadPoolQueueCapacity=10000,
        unRegisterBrokerQueueCapacity=3000,
        notifyMinBrokerIdChanged=False,
        needWaitForService=False,
        waitSecondsForService=45,
    ),
)
"""Of NamesrvConfig."""
