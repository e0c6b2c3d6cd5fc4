package org.apache.rocketmq.namesrv;

import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/**
 * The name server that is there already, in place of one that a test starts: its address is 127.0.0.1 and the port of
 * -Dmqlake.namesrv.
 */
public class NamesrvController {
    private final NettyServerConfig serverConfig;
    private final NamesrvConfig namesrvConfig = new NamesrvConfig() {
        @Override
        public void setDeleteTopicWithBrokerRegistration(boolean value) {
            super.setDeleteTopicWithBrokerRegistration(value);
            Properties change = new Properties();
            change.setProperty("deleteTopicWithBrokerRegistration", String.valueOf(value));
            BrokerController.ask(admin -> admin.updateNameServerConfig(change, null));
        }
    };

    public NamesrvController(NamesrvConfig namesrvConfig, NettyServerConfig serverConfig) {
        this.serverConfig = serverConfig;
    }

    public boolean initialize() {
        serverConfig.setListenPort(Integer.getInteger("mqlake.namesrv"));
        return true;
    }

    public void start() {
    }

    public void shutdown() {
    }

    public NettyServerConfig getNettyServerConfig() {
        return serverConfig;
    }

    public NamesrvConfig getNamesrvConfig() {
        return namesrvConfig;
    }
}
