package mqlake.wire;

import com.alibaba.fastjson2.JSONObject;
import java.io.File;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * RocketMQ's own name server and broker, one of each at most.
 *
 * <pre>
 * namesrv.start  root, port
 * namesrv.stop
 * broker.start   root, namesrv, name, port, haPort
 * broker.stop                                does not wait for its end
 * </pre>
 */
final class Servers {
    private NamesrvController namesrv;
    private BrokerController broker;

    JSONObject serve(String what, JSONObject request) throws Exception {
        switch (what) {
            case "namesrv.start":
                return startNamesrv(request.getString("root"), request.getIntValue("port"));
            case "namesrv.stop":
                namesrv.shutdown();
                return new JSONObject();
            case "broker.start":
                return startBroker(request);
            case "broker.stop":
                // It says goodbye first and then waits long for its own threads.
                new Thread(broker::shutdown, "broker-stop").start();
                return new JSONObject();
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private JSONObject startNamesrv(String root, int port) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setKvConfigPath(root + File.separator + "kvConfig.json");
        config.setConfigStorePath(root + File.separator + "namesrv.properties");
        NettyServerConfig netty = new NettyServerConfig();
        netty.setListenPort(port);
        namesrv = new NamesrvController(config, netty);
        namesrv.initialize();
        namesrv.start();
        return new JSONObject();
    }

    private JSONObject startBroker(JSONObject request) throws Exception {
        BrokerConfig config = new BrokerConfig();
        config.setBrokerName(request.getString("name"));
        config.setBrokerClusterName("JavaCluster");
        config.setBrokerIP1("127.0.0.1");
        config.setNamesrvAddr(request.getString("namesrv"));
        config.setRocketmqHome(request.getString("root"));
        NettyServerConfig netty = new NettyServerConfig();
        netty.setListenPort(request.getIntValue("port"));
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(request.getString("root"));
        store.setStorePathCommitLog(request.getString("root") + File.separator + "commitlog");
        store.setMappedFileSizeCommitLog(1 << 20);
        store.setMaxHashSlotNum(100);
        store.setMaxIndexNum(400);
        store.setMappedFileSizeTimerLog(1 << 20);
        store.setTimerWheelEnable(false);
        store.setHaListenPort(request.getIntValue("haPort"));
        broker = new BrokerController(config, netty, new NettyClientConfig(), store, new AuthConfig());
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not initialize");
        }
        broker.start();
        return new JSONObject();
    }
}
