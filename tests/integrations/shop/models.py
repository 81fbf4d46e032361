from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)

    class Meta:
        app_label = "shop"
