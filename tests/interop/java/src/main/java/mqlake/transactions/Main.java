package mqlake.transactions;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import mqlake.lines.Patience;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * TransactionMQProducer behind a line protocol (see {@link RequestLoop}). Each message says in its
 * properties "local" and "check" what its local transaction comes to: COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW.
 * No broker asks for what will end by itself, however long a slow machine takes to end it.
 *
 * <pre>
 * start  name, namesrv, group        instance name: name
 * send   name, topic, body, local,   status, state
 *        check, flag
 * asked  name                        bodies that a broker has asked for so far
 * stop   name                        returns when the brokers have been told
 * </pre>
 */
public final class Main {
    private final Map<String, TransactionMQProducer> producers = new HashMap<>();
    private final Map<String, List<String>> asked = new HashMap<>();

    private Main() {
    }

    public static void main(String[] args) throws Exception {
        RequestLoop.run(new Main()::serve);
    }

    private JSONObject serve(String what, JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (what) {
            case "start":
                producers.put(name, start(name, request));
                return new JSONObject();
            case "send":
                return send(producers.get(name), request);
            case "asked":
                return JSONObject.of("bodies", new ArrayList<>(asked.get(name)));
            case "stop":
                producers.remove(name).shutdown();
                return new JSONObject();
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private TransactionMQProducer start(String name, JSONObject request) throws Exception {
        List<String> bodies = new CopyOnWriteArrayList<>();
        asked.put(name, bodies);
        TransactionMQProducer producer = new TransactionMQProducer(request.getString("group"));
        producer.setNamesrvAddr(request.getString("namesrv"));
        producer.setInstanceName(name);
        producer.setSendMsgTimeout(Patience.MILLIS);
        Patience.give(producer);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return LocalTransactionState.valueOf(message.getUserProperty("local"));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                return LocalTransactionState.valueOf(message.getUserProperty("check"));
            }
        });
        producer.start();
        return producer;
    }

    private static JSONObject send(TransactionMQProducer producer, JSONObject request) throws Exception {
        Message message = new Message(
            request.getString("topic"), request.getString("body").getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("local", request.getString("local"));
        message.putUserProperty("check", request.getString("check"));
        if (!LocalTransactionState.UNKNOW.name().equals(request.getString("local"))) {
            message.putUserProperty(MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, "600");
        }
        message.setFlag(request.getIntValue("flag"));
        TransactionSendResult sent = producer.sendMessageInTransaction(message, null);
        return JSONObject.of("status", sent.getSendStatus().name(), "state", sent.getLocalTransactionState().name());
    }
}
