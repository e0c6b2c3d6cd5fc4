package mqlake.lines;

import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/** How long a test waits: RocketMQ's own limits of 3 s are over before a busy machine has answered. */
public final class Patience {
    public static final int MILLIS = 60_000;

    private Patience() {
    }

    /** For what a client asks by itself: routes, heartbeats, who else consumes. */
    public static void give(ClientConfig client) {
        client.setMqClientApiTimeout(MILLIS);
    }

    /** What is found, which a name server may be told of only a moment from now; null is nothing. */
    public static <T> T find(Callable<T> search) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(MILLIS);
        while (true) {
            boolean last = System.nanoTime() > deadline;
            try {
                T found = search.call();
                if (found != null || last) {
                    return found;
                }
            } catch (MQClientException | MQBrokerException failure) {
                if (last || !isUnknownTopic(failure)) {
                    throw failure;
                }
            }
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(20));
        }
    }

    private static boolean isUnknownTopic(Throwable failure) {
        for (Throwable each = failure; each != null; each = each.getCause()) {
            if (each instanceof MQClientException
                && ((MQClientException) each).getResponseCode() == ResponseCode.TOPIC_NOT_EXIST) {
                return true;
            }
        }
        return false;
    }
}
