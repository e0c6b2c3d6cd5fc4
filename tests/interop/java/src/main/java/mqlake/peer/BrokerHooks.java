package mqlake.peer;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.hook.PutMessageHook;

/**
 * What a broker hangs in front of its store (in 5.x these checks are the broker's, not the store's): who may be
 * put at all, and the delay level's detour through the schedule topic.
 */
final class BrokerHooks {
    private static final int TOPIC_BYTES_MAX = 255;

    private BrokerHooks() {
    }

    static final class BeforePut implements PutMessageHook {
        private final PeerStore peer;

        BeforePut(PeerStore peer) {
            this.peer = peer;
        }

        @Override
        public String hookName() {
            return "beforePut";
        }

        @Override
        public PutMessageResult executeBeforePutMessage(MessageExt message) {
            if (peer.store.isShutdown() || peer.config.getBrokerRole() == BrokerRole.SLAVE
                || !peer.store.getRunningFlags().isWriteable()) {
                return new PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, null);
            }
            int topicBytes = message.getTopic().getBytes(StandardCharsets.UTF_8).length;
            boolean retry = message.getTopic().startsWith(MixAll.RETRY_GROUP_TOPIC_PREFIX);
            if (topicBytes > TOPIC_BYTES_MAX || topicBytes > Byte.MAX_VALUE && !retry || message.getBody() == null) {
                return new PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, null);
            }
            if (peer.store.isOSPageCacheBusy()) {
                return new PutMessageResult(PutMessageStatus.OS_PAGE_CACHE_BUSY, null);
            }
            return null;
        }
    }

    static final class Schedule implements PutMessageHook {
        private final int levelMax;

        Schedule(PeerStore peer) {
            this.levelMax = peer.config.getMessageDelayLevel().split(" ").length;
        }

        @Override
        public String hookName() {
            return "schedule";
        }

        @Override
        public PutMessageResult executeBeforePutMessage(MessageExt message) {
            int transaction = MessageSysFlag.getTransactionValue(message.getSysFlag());
            boolean visible = transaction == MessageSysFlag.TRANSACTION_NOT_TYPE
                || transaction == MessageSysFlag.TRANSACTION_COMMIT_TYPE;
            if (visible && message.getDelayTimeLevel() > 0) {
                message.setDelayTimeLevel(Math.min(message.getDelayTimeLevel(), levelMax));
                MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_TOPIC, message.getTopic());
                MessageAccessor.putProperty(
                    message, MessageConst.PROPERTY_REAL_QUEUE_ID, String.valueOf(message.getQueueId()));
                ((MessageExtBrokerInner) message).setPropertiesString(
                    MessageDecoder.messageProperties2String(message.getProperties()));
                message.setTopic(TopicValidator.RMQ_SYS_SCHEDULE_TOPIC);
                message.setQueueId(message.getDelayTimeLevel() - 1);
            }
            return null;
        }
    }
}
