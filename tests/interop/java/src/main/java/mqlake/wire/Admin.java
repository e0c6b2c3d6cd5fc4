package mqlake.wire;

import com.alibaba.fastjson2.JSONObject;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import mqlake.lines.Patience;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** RocketMQ's admin tool. Each request names the name server; the tool is started with the first. */
final class Admin {
    private DefaultMQAdminExt tool;
    private String nameServer;

    JSONObject serve(String what, JSONObject request) throws Exception {
        DefaultMQAdminExt admin = tool(request.getString("namesrv"));
        String topic = request.getString("topic");
        String key = request.getString("key");
        String space = request.getString("namespace");
        switch (what) {
            case "route":
                return json(admin.examineTopicRouteInfo(topic));
            case "clusters":
                return json(admin.examineBrokerClusterInfo());
            case "topics":
                return json(admin.fetchAllTopicList());
            case "topicsByCluster":
                return json(admin.fetchTopicsByCLuster(request.getString("cluster")));
            case "deleteTopic":
                admin.deleteTopicInNameServer(Set.of(nameServer), topic);
                return new JSONObject();
            case "wipeWritePerm":
                return JSONObject.of("count", admin.wipeWritePermOfBroker(nameServer, request.getString("broker")));
            case "addWritePerm":
                return JSONObject.of("count", admin.addWritePermOfBroker(nameServer, request.getString("broker")));
            case "putKV":
                admin.createAndUpdateKvConfig(space, key, request.getString("value"));
                return new JSONObject();
            case "getKV":
                return JSONObject.of("value", admin.getKVConfig(space, key));
            case "deleteKV":
                admin.deleteKvConfig(space, key);
                return new JSONObject();
            case "listKV":
                return json(admin.getKVListByNamespace(space));
            case "getConfig":
                return new JSONObject(admin.getNameServerConfig(List.of(nameServer)).get(nameServer));
            case "updateConfig": {
                Properties properties = new Properties();
                properties.setProperty(key, request.getString("value"));
                admin.updateNameServerConfig(properties, List.of(nameServer));
                return new JSONObject();
            }
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private DefaultMQAdminExt tool(String wanted) throws Exception {
        if (tool != null && !wanted.equals(nameServer)) {
            tool.shutdown();
            tool = null;
        }
        if (tool == null) {
            nameServer = wanted;
            tool = new DefaultMQAdminExt(Patience.MILLIS);
            tool.setNamesrvAddr(wanted);
            Patience.give(tool);
            tool.setInstanceName("mqlake-" + System.nanoTime());
            tool.start();
        }
        return tool;
    }

    private static JSONObject json(RemotingSerializable body) {
        return JSONObject.of("json", body.toJson());
    }
}
