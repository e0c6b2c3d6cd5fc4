//! RocketMQ's Rust crate through everything it can do with a broker: peer HOST:PORT PREFIX
//!
//! Version 5.0.0 has neither push consumers, nor changes of the invisible time, nor recall.

use std::env::args;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

const PATIENCE: Duration = Duration::from_secs(90);

fn options() -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(args().nth(1).unwrap());
    options.set_enable_tls(false);
    options
}

fn named(name: &str) -> String {
    format!("{}{name}", args().nth(2).unwrap())
}

fn described(view: &MessageView) -> Value {
    json!({
        "body": String::from_utf8_lossy(view.body()),
        "id": view.message_id(),
        "tag": view.tag(),
        "keys": view.keys(),
        "p": view.properties().get("p"),
        "attempt": view.delivery_attempt(),
    })
}

/// Acknowledges what it receives, in the order of arrival.
async fn received(group: &str, topic: &str, expression: &str, count: usize) -> Result<Vec<Value>, ClientError> {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![named(topic)]);
    option.set_consumer_group(named(group));
    let mut consumer = SimpleConsumer::new(option, options())?;
    consumer.start().await?;
    let filter = FilterExpression::new(FilterType::Tag, expression);
    let (mut found, deadline) = (vec![], Instant::now() + PATIENCE);
    while found.len() < count && Instant::now() < deadline {
        let views = consumer.receive_with(named(topic), &filter, 16, Duration::from_secs(20)).await?;
        for view in views {
            found.push(described(&view));
            consumer.ack(&view).await?;
        }
    }
    consumer.shutdown().await?;
    Ok(found)
}

fn bodies(all: &[Value]) -> Vec<&Value> {
    all.iter().map(|each| &each["body"]).collect()
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut option = ProducerOption::default();
    option.set_topics(["N", "F", "D", "X"].map(named).to_vec());
    let checker = Box::new(|_, _| TransactionResolution::COMMIT);
    let mut producer = Producer::new_transaction_producer(option, options(), checker)?;
    producer.start().await?;

    let mut sent = vec![];
    for number in 0..10 {
        let message = MessageBuilder::builder()
            .set_topic(named("N"))
            .set_body(format!("n-{number}").into_bytes())
            .set_tag(["a", "b"][number % 2])
            .set_keys(vec![format!("k-{number}")])
            .set_properties([("p", number.to_string())].into())
            .build()?;
        sent.push(producer.send(message).await?.message_id().to_string());
    }
    let simple = received("gs", "N", "a", 5).await?;

    for number in 0..6 {
        let body = format!("f-{number}").into_bytes();
        producer.send(MessageBuilder::fifo_message_builder(named("F"), body, "g1").build()?).await?;
    }
    let fifo = received("go", "F", "*", 6).await?;

    let due = now_ms() + 4000;
    producer.send(MessageBuilder::delay_message_builder(named("D"), b"kept".to_vec(), due / 1000).build()?).await?;
    let delayed = received("gd", "D", "*", 1).await?;
    let early = now_ms() < due / 1000 * 1000;

    for body in ["commit", "rollback", "orphan"] {
        let message = MessageBuilder::transaction_message_builder(named("X"), body.into()).build()?;
        let transaction = producer.send_transaction_message(message).await?;
        match body {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => {}
        }
    }
    let ended = received("gx", "X", "*", 2).await?;
    let mut transactions = bodies(&ended);
    transactions.sort_by_key(|body| body.to_string());
    producer.shutdown().await?;

    let result = json!({"sent": sent, "simple": simple, "fifo": bodies(&fifo), "delayed": bodies(&delayed),
        "early": early, "transactions": transactions});
    println!("{result}");
    Ok(())
}
