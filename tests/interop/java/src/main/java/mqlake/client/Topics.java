package mqlake.client;

import com.alibaba.fastjson2.JSONObject;
import java.util.HashMap;
import java.util.Map;
import mqlake.lines.RequestLoop;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Topics, made as mqadmin makes them.
 *
 * <pre>
 * topic.create   namesrv, topic, queues     on every broker; then the name server knows it
 * </pre>
 */
final class Topics implements RequestLoop.Service {
    private final Map<String, DefaultMQAdminExt> tools = new HashMap<>();

    @Override
    public JSONObject serve(String what, JSONObject request) throws Exception {
        if (!"create".equals(what)) {
            throw new IllegalArgumentException(what);
        }
        int queues = request.getIntValue("queues");
        DefaultMQAdminExt admin = tool(request.getString("namesrv"));
        for (BrokerData broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            admin.createAndUpdateTopicConfig(
                broker.selectBrokerAddr(), new TopicConfig(request.getString("topic"), queues, queues));
        }
        return JSONObject.of("brokers", admin.examineTopicRouteInfo(request.getString("topic")).getBrokerDatas().size());
    }

    /** One for each name server, kept. */
    private DefaultMQAdminExt tool(String namesrv) throws Exception {
        DefaultMQAdminExt tool = tools.get(namesrv);
        if (tool == null) {
            tool = new DefaultMQAdminExt(5000);
            tool.setNamesrvAddr(namesrv);
            tool.setInstanceName("topics-" + tools.size());
            tool.start();
            tools.put(namesrv, tool);
        }
        return tool;
    }
}
