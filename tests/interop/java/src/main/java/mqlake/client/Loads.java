package mqlake.client;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A load that goes on whatever the broker does: one thread for each queue of a topic sends numbers, each once, in
 * their order, and notes which of them were acknowledged.
 *
 * <pre>
 * load.start   name, namesrv, topic; batch (messages in one send, default 1)
 * load.state   name      acknowledged, failed: counts
 * load.await   name, count, timeoutMillis      the same, as soon as so many more are acknowledged or the time is over
 * load.stop    name      queues: the acknowledged [number, queueOffset] of each, failed
 * </pre>
 */
final class Loads implements RequestLoop.Service {
    private static final class Load {
        DefaultMQProducer producer;
        final List<Worker> workers = new ArrayList<>();
        volatile boolean stopped;

        int acknowledged() {
            return workers.stream().mapToInt(worker -> worker.acknowledged.size()).sum();
        }

        JSONObject state() {
            return JSONObject.of("acknowledged", acknowledged(),
                "failed", workers.stream().mapToInt(worker -> worker.failed).sum());
        }
    }

    private static final class Worker extends Thread {
        final Load load;
        final MessageQueue queue;
        final int batch;
        final List<long[]> acknowledged = Collections.synchronizedList(new ArrayList<>());
        volatile int failed;

        Worker(Load load, MessageQueue queue, int batch) {
            super("load-" + queue.getQueueId());
            this.load = load;
            this.queue = queue;
            this.batch = batch;
        }

        @Override
        public void run() {
            long number = 0;
            while (!load.stopped) {
                List<Message> messages = new ArrayList<>();
                long first = number;
                for (int i = 0; i < batch; i++) {
                    messages.add(new Message(
                        queue.getTopic(), Long.toString(number++).getBytes(StandardCharsets.UTF_8)));
                }
                try {
                    SendResult result = batch == 1 ? load.producer.send(messages.get(0), queue)
                        : load.producer.send(messages, queue);
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        List<long[]> all = new ArrayList<>();
                        for (int i = 0; i < batch; i++) {
                            all.add(new long[] {first + i, result.getQueueOffset() + i});
                        }
                        acknowledged.addAll(all);
                        continue;
                    }
                } catch (Exception failure) {
                    // nobody is there, perhaps
                }
                failed++;
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(20));
            }
        }
    }

    private final Map<String, Load> loads = new HashMap<>();

    @Override
    public JSONObject serve(String what, JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (what) {
            case "start":
                loads.put(name, start(name, request));
                return new JSONObject();
            case "state":
                return loads.get(name).state();
            case "await": {
                Load load = loads.get(name);
                int wanted = load.acknowledged() + request.getIntValue("count");
                long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(request.getLongValue("timeoutMillis"));
                while (load.acknowledged() < wanted && System.nanoTime() < deadline) {
                    LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(5));
                }
                return load.state();
            }
            case "stop":
                return stop(loads.remove(name));
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private static Load start(String name, JSONObject request) throws Exception {
        Load load = new Load();
        load.producer = Producers.start(name, request);
        for (MessageQueue queue : load.producer.fetchPublishMessageQueues(request.getString("topic"))) {
            load.workers.add(new Worker(load, queue, request.getIntValue("batch", 1)));
        }
        load.workers.forEach(Thread::start);
        return load;
    }

    private static JSONObject stop(Load load) throws InterruptedException {
        load.stopped = true;
        JSONObject queues = new JSONObject();
        for (Worker worker : load.workers) {
            worker.join();
            JSONArray all = new JSONArray();
            worker.acknowledged.forEach(all::add);
            queues.put(Integer.toString(worker.queue.getQueueId()), all);
        }
        Main.later(load.producer::shutdown);
        return JSONObject.of("queues", queues, "failed", load.state().getIntValue("failed"));
    }
}
