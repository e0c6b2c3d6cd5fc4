//! The community's Rust client (rocketmq-client-rust) as a peer.
//!
//!     peer send NAMESRV TOPIC COUNT             COUNT messages each way: sync, async, oneway, one batch
//!     peer commit NAMESRV TOPIC COUNT           so many transactions
//!     peer consume NAMESRV GROUP TOPIC COUNT    consumes until it has so many
//!
//! Each writes a line of JSON for each answer or message to stdout.
use std::any::Any;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rocketmq_client_rust::{
    ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    DefaultMQProducer, DefaultMQPushConsumer, LocalTransactionState, MQPushConsumer, MessageListenerConcurrently,
    TransactionListener, TransactionMQProducer,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::RuntimeOwner;
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(60);

fn message(topic: &str, how: &str, number: usize) -> Message {
    Message::builder()
        .topic(topic)
        .tags(how)
        .key(format!("key-{number}"))
        .body_slice(number.to_string().as_bytes())
        .raw_property("number", number.to_string())
        .expect("the name is not reserved")
        .build_unchecked()
}

struct Commits;

impl TransactionListener for Commits {
    fn execute_local_transaction(
        &self,
        _message: &dyn MessageTrait,
        _argument: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        LocalTransactionState::CommitMessage
    }

    fn check_local_transaction(&self, _message: &MessageExt) -> LocalTransactionState {
        LocalTransactionState::CommitMessage
    }
}

async fn send(client: Arc<ClientRuntime>, namesrv: &str, topic: &str, count: usize) -> Result<(), Box<dyn Error>> {
    let mut producer = DefaultMQProducer::builder(client)
        .producer_group("GID_rust")
        .name_server_addr(namesrv)
        .build();
    producer.start().await?;
    for number in 0..count {
        let result = producer
            .send_with_timeout(message(topic, "sync", number), 60_000)
            .await?;
        println!("{}", serde_json::to_string(&result)?);
    }
    let (done, mut results) = mpsc::unbounded_channel();
    for number in 0..count {
        let done = done.clone();
        producer
            .send_with_callback(message(topic, "async", number), move |result, error| {
                let _ = done.send((result.cloned(), error.map(ToString::to_string)));
            })
            .await?;
    }
    for _ in 0..count {
        let (result, error) = tokio::time::timeout(PATIENCE, results.recv())
            .await?
            .ok_or("no answer")?;
        println!("{}", serde_json::to_string(&result.ok_or(error.unwrap_or_default())?)?);
    }
    for number in 0..count {
        producer.send_oneway(message(topic, "oneway", number)).await?;
    }
    let batch = (0..count).map(|number| message(topic, "batch", number)).collect();
    println!(
        "{}",
        serde_json::to_string(&producer.send_batch_with_timeout(batch, 60_000).await?)?
    );
    producer.shutdown().await;
    Ok(())
}

async fn send_committed(
    client: Arc<ClientRuntime>,
    namesrv: &str,
    topic: &str,
    count: usize,
) -> Result<(), Box<dyn Error>> {
    let mut producer = TransactionMQProducer::builder(client)
        .producer_group("GID_rust_committed")
        .name_server_addr(namesrv)
        .topics(vec![topic])
        .transaction_listener(Commits)
        .build();
    producer.start().await?;
    for number in 0..count {
        println!(
            "\"{}\"",
            producer
                .send_message_in_transaction::<(), _>(message(topic, "committed", number), None)
                .await?
        );
    }
    producer.shutdown().await;
    Ok(())
}

struct Listener(mpsc::UnboundedSender<serde_json::Value>);

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        for each in messages {
            let inner = each.message_inner();
            let _ = self.0.send(serde_json::json!({
                "body": String::from_utf8_lossy(inner.body_slice()),
                "tags": inner.tags().map(|tags| tags.to_string()),
                "keys": inner.property("KEYS").map(|keys| keys.to_string()),
                "number": inner.property("number").map(|number| number.to_string()),
                "queueId": each.queue_id(),
                "queueOffset": each.queue_offset(),
            }));
        }
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

async fn consume(
    client: Arc<ClientRuntime>,
    namesrv: &str,
    group: &str,
    topic: &str,
    count: usize,
) -> Result<(), Box<dyn Error>> {
    let (done, mut messages) = mpsc::unbounded_channel();
    let mut consumer = DefaultMQPushConsumer::builder(client)
        .consumer_group(group)
        .name_server_addr(namesrv)
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .build();
    consumer.subscribe(topic, "*").await?;
    consumer.register_message_listener_concurrently(Listener(done));
    consumer.start().await?;
    for _ in 0..count {
        println!(
            "{}",
            tokio::time::timeout(PATIENCE, messages.recv())
                .await?
                .ok_or("no message")?
        );
    }
    consumer.shutdown().await;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let client = ClientRuntime::try_new(
        owner.root_context().component("peer"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )?;
    let outcome = owner.block_on(async {
        let outcome = match words[..] {
            ["send", namesrv, topic, count] => send(client.clone(), namesrv, topic, count.parse()?).await,
            ["commit", namesrv, topic, count] => send_committed(client.clone(), namesrv, topic, count.parse()?).await,
            ["consume", namesrv, group, topic, count] => {
                consume(client.clone(), namesrv, group, topic, count.parse()?).await
            }
            _ => Err("send, commit or consume".into()),
        };
        client.shutdown().await;
        outcome
    });
    owner.shutdown_runtime_blocking()?;
    outcome
}
